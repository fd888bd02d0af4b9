// The load imbalance between devices, if each device has whole experts. A token chooses `used` of all experts at
// random. All devices wait for the device with the most chosen experts. Pure functions.
//
//   A token uses 8 of 128 experts, and each of 4 devices has 32 experts.
//   one token:    2 chosen experts per device on average, but 3.5 on the busiest device
//   512 tokens:   1024 (token, expert) pairs per device on average, but 1056 on the busiest device
#pragma once

#include <cstdint>
#include <span>

namespace shoal::machine {

/// Returns the expected time of the busiest device: E[max over devices d of seconds[d] * n[d]]. n[d] is the number of
/// (token, selected expert) pairs whose expert is on device d. `experts[d]` is the number of experts on d. `seconds[d]`
/// is the time of one pair. Exact for one token. For several tokens, the result is within 3 % of a simulation.
double expected_busiest(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used,
                        int64_t tokens);

/// expected_busiest() minus the longest expected time of a device. Predictions from averages do not include this
/// excess.
double expected_excess(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used, int64_t tokens);

}  // namespace shoal::machine
