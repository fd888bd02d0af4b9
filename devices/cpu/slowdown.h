// Slowdown: makes a CPU device slower than it is, so that uneven machines can be tried on even ones
// (SHOAL_CPU_SLOWDOWN). What computes is let alone; after each piece of work the device waits in proportion to the time
// that it took:
//
//   factor 3   |== 40 us of work ==|........ 80 us of waiting ........|   a piece of 120 us
//
// Plain functions, thread-safe.
#pragma once

#include <chrono>

#include "devices/backend.h"

namespace shoal::cpu {

inline constexpr double kMaxSlowdown = 1000;

/// Waits until factor * (end - begin) have passed since `begin`: long waits leave the core to others, the last part is
/// spun through, as a sleeping thread comes back too late for pieces of some microseconds. `stop` (it may be empty) is
/// asked every few milliseconds; true: it said so.
bool wait_in_proportion(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end,
                        double factor, const AbortCallback& stop);

}  // namespace shoal::cpu
