// The imbalance of devices that have whole experts. A token chooses `used` of all experts at random, and all devices
// wait for the device with the most chosen experts. Pure functions.
//
//   8 of 128 experts, 32 on each of 4 devices: 2 per device on average, but 3.5 on the busiest
//   512 tokens: 1024 (slot, token) pairs per device on average, 1056 on the busiest
#pragma once

#include <cstdint>
#include <span>

namespace shoal::machine {

/// E[max over devices d of seconds[d] * n[d]]. n[d] is the number of (slot, token) pairs whose expert is on device d.
/// `experts[d]`: number of experts on d. Exact for one token; within 3 % of a simulation for several tokens.
double expected_busiest(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used,
                        int64_t tokens);

/// expected_busiest() minus the longest expected time of a device. Predictions from averages do not include it.
double expected_excess(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used, int64_t tokens);

}  // namespace shoal::machine
