// Simulates the ranks of one domain, which compute at the same time and share its cores and bandwidth. Between two
// events (a piece of work is done, or a rank is done) all rates are constant, so the times are exact.
//
//   The domain has a bandwidth of 60. Two ranks could read 40 each, and have 400 and 800 bytes to read.
//   Both read at 30 until 13.3 s, when the first is done. The second has 400 bytes left and reads at 40: 23.3 s.
#pragma once

#include <span>
#include <vector>

#include "machine/machine.h"

namespace shoal::tuning {

/// A piece of a rank's work: the seconds that it takes if the rank has the domain to itself, and the bytes that it
/// reads at a constant rate in that time.
struct Work {
  double seconds = 0;
  double bytes = 0;
};

/// The work of one rank in a domain.
struct Flow {
  double cores = 1;
  double bandwidth = 0;        ///< weight of the rank when bandwidth is scarce
  std::span<const Work> work;  ///< pieces in the order of execution
  std::span<double> ends;      ///< result: end of each piece of work, in seconds after the common start
};

/// Runs all flows of a domain, which start together. A piece of work takes its seconds divided by the fraction of its
/// cores that the rank gets. Its bytes divided by that time are the bandwidth demand. If all demands together exceed
/// the domain's bandwidth, each rank gets a share in proportion to its own bandwidth, but at most its demand.
void run_flows(const machine::Domain& domain, std::span<Flow> flows);

}  // namespace shoal::tuning
