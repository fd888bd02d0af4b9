// The time of several overlapping runs of a schedule: run r may be on one device while run r - 1 is on the next device.
// Pure functions.
//
//   2 stages on 2 devices, 3 s and 1 s, 3 runs, enough slots:   A |0 0 0|1 1 1|2 2 2|
//                                                               B       |0|   |1|   |2|     10 s, not 12
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::tuning {

/// A stage of one run: a split of the schedule, and the copies before it.
struct StageWork {
  int backend = 0;
  double seconds = 0;  ///< time if nothing else runs
};

/// Number of cores that a backend keeps busy in each domain of the machine.
using CoreDemand = std::vector<double>;

/// Consecutive runs with equal stages.
struct AlikeRuns {
  int64_t count = 1;
  std::vector<StageWork> stages;  ///< in order of execution; all runs have the same number of stages
};

/// `slots`: number of runs that may be in flight between two stages (sched::copies_for). `demand`: cores by backend.
/// `cores`: cores by domain; 0: no limit. The result is at least the time that the cores of each domain need for all
/// work. Beyond a few hundred equal runs, each further run is assumed to take the average time of the previous runs.
double pipeline_seconds(std::span<const AlikeRuns> runs, int slots, std::span<const CoreDemand> demand,
                        std::span<const double> cores);

}  // namespace shoal::tuning
