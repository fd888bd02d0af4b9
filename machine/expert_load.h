// How unevenly experts that lie whole on devices are used: a token chooses `used` of all experts as if by lot, and the
// device that has most of those chosen is the one that the others wait for. Pure functions.
//
//   8 of 128 experts, 32 on each of 4 devices: 2 a device on the average, but 3.5 on the busiest
//   512 tokens: 1024 (slot, token) pairs a device on the average, 1056 on the busiest
#pragma once

#include <cstdint>
#include <span>

namespace shoal::machine {

/// E[max over devices d of seconds[d] * n[d]], where n[d] are the (slot, token) pairs whose expert device d has;
/// `experts[d]`: how many it has. Exact for one token, near for several (within 3 % of a simulation).
double expected_busiest(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used,
                        int64_t tokens);

/// By how much that is above the longest of the devices' expected seconds, which is what planning for the average
/// overlooks.
double expected_excess(std::span<const int64_t> experts, std::span<const double> seconds, int64_t used, int64_t tokens);

}  // namespace shoal::machine
