// A slowdown makes a CPU device slower, to simulate a machine with unequal devices (SHOAL_CPU_SLOWDOWN). The
// computation does not change. After each piece of work, the device waits for a time proportional to the duration of
// the work. With factor 3, 40 us of work take 120 us:
//
//   |== 40 us of work ==|........ 80 us of waiting ........|
//
// These functions have no state and are thread-safe.
#pragma once

#include <chrono>

#include "devices/backend.h"

namespace shoal::cpu {

inline constexpr double kMaxSlowdown = 1000;

/// Waits until a time of factor * (end - begin) has passed since `begin`. In a long wait, the thread sleeps, so that
/// other threads can use the core. At the end of a wait, the thread spins, because a sleeping thread would wake too
/// late if the work takes only a few microseconds. If `stop` is not empty, the function calls it every few
/// milliseconds. If `stop` returns true, this function returns true at once.
bool wait_in_proportion(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end,
                        double factor, const AbortCallback& stop);

}  // namespace shoal::cpu
