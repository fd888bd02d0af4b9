// Computes the time of several overlapping runs of a schedule. Run r may use one device while run r - 1 uses the next
// device. Pure functions.
//
//   2 stages on 2 devices, 3 s and 1 s, 3 runs, enough slots:   A |0 0 0|1 1 1|2 2 2|
//                                                               B       |0|   |1|   |2|     10 s, not 12
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::tuning {

/// A stage of one run: a split of the schedule, including the copies before the split.
struct StageWork {
  int backend = 0;
  double seconds = 0;  ///< time if nothing else runs
};

/// Number of cores that a backend uses in each domain of the machine.
using CoreDemand = std::vector<double>;

/// Consecutive runs with equal stages.
struct AlikeRuns {
  int64_t count = 1;
  std::vector<StageWork> stages;  ///< stages in order of execution; all runs have the same number of stages
};

/// Returns the seconds of all runs.
///
/// - `slots`: number of runs that may be in flight between two stages (sched::copies_for).
/// - `demand`: number of cores, by backend and domain.
/// - `cores`: number of cores, by domain; 0: no limit.
///
/// The result is at least the time that the cores of each domain need for all work. Only a few hundred equal runs are
/// simulated. For each additional run, the average time of the last simulated runs is added.
double pipeline_seconds(std::span<const AlikeRuns> runs, int slots, std::span<const CoreDemand> demand,
                        std::span<const double> cores);

}  // namespace shoal::tuning
