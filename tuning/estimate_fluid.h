// Work that flows: ranks of one domain compute at the same time and take cores and bandwidth from each other. Between
// two events (a piece of work is done, a rank is done) everything goes on evenly, so that the times are exact.
//
//   bandwidth 60 of the domain; two ranks that could read 40 each, with 400 and 800 bytes to read:
//   both read with 30 until 13.3 s, when the first is done; the second has 400 left and reads with 40: 23.3 s
#pragma once

#include <span>
#include <vector>

#include "machine/machine.h"

namespace shoal::tuning {

/// What a rank does without a change: seconds if it had the domain to itself, and bytes it reads from memory evenly.
struct Work {
  double seconds = 0;
  double bytes = 0;
};

/// A rank's part in a domain.
struct Flow {
  double cores = 1;
  double bandwidth = 0;        ///< its weight where bandwidth is scarce
  std::span<const Work> work;  ///< in order
  std::span<double> ends;      ///< result: when each is done, from the common begin
};

/// Runs all flows of a domain, which begin together. An op takes its seconds divided by the part of the cores that its
/// rank gets; what it reads evenly in that time is its demand. Where all demands together are more than the domain's
/// bandwidth, each rank gets a part in proportion to its own bandwidth, and none more than the demand.
void run_flows(const machine::Domain& domain, std::span<Flow> flows);

}  // namespace shoal::tuning
