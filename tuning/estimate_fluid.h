// Simulates ranks that compute at the same time in one domain and so share its cores and bandwidth. An event is the end
// of a work item or of a rank's work. All rates are constant between two events, so the times are exact.
//
//   The domain has a bandwidth of 60 bytes/s. Each of two ranks could read at 40 bytes/s. Rank 0 has 400 bytes to read,
//   and rank 1 has 800 bytes. Both ranks read at 30 bytes/s until 13.3 s, when rank 0 finishes. Rank 1 then has 400
//   bytes left, reads at 40 bytes/s and finishes at 23.3 s.
#pragma once

#include <span>
#include <vector>

#include "machine/machine.h"

namespace shoal::tuning {

/// A work item of a rank. `seconds`: time if no other rank uses the domain. `bytes`: bytes that the rank reads at a
/// constant rate in this time.
struct Work {
  double seconds = 0;
  double bytes = 0;
};

/// The work of one rank in a domain.
struct Flow {
  double cores = 1;
  double bandwidth = 0;        ///< weight of the rank in the division of scarce bandwidth; 0: the weight is the rank's
                               ///< demand
  std::span<const Work> work;  ///< work items in the order of execution
  std::span<double> ends;      ///< result: end of each work item, in seconds after the common start
};

/// Runs all flows of a domain. All flows start at the same time. If the domain has fewer cores than the flows need
/// together, each rank gets the same fraction of the cores that it needs. A work item then takes its `seconds` divided
/// by this fraction. The bandwidth demand of a work item is its bytes divided by its time. If the total demand exceeds
/// the domain's bandwidth, the ranks divide the bandwidth in proportion to their own bandwidths. No rank gets more than
/// its demand.
void run_flows(const machine::Domain& domain, std::span<Flow> flows);

}  // namespace shoal::tuning
