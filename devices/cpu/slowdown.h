// Slowdown: makes a CPU device slower, to simulate a machine with unequal devices (SHOAL_CPU_SLOWDOWN). The computation
// itself does not change. After each piece of work, the device waits for a time proportional to the duration of the
// work:
//
//   factor 3   |== 40 us of work ==|........ 80 us of waiting ........|   a piece of 120 us
//
// Plain functions, thread-safe.
#pragma once

#include <chrono>

#include "devices/backend.h"

namespace shoal::cpu {

inline constexpr double kMaxSlowdown = 1000;

/// Waits until factor * (end - begin) has passed since `begin`. Long waits sleep, which leaves the core to other
/// threads. The last part of a wait spins, because a sleeping thread wakes too late for pieces of some microseconds. If
/// `stop` is not empty, it is called every few milliseconds, and the wait returns true as soon as `stop` does.
bool wait_in_proportion(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end,
                        double factor, const AbortCallback& stop);

}  // namespace shoal::cpu
