// How long several runs of a schedule take when they overlap: run r may be on one device while run r - 1 is on the
// next. Pure functions.
//
//   2 stages on 2 devices, 3 s and 1 s, 3 runs, enough slots:   A |0 0 0|1 1 1|2 2 2|
//                                                               B       |0|   |1|   |2|     10 s, not 12
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::tuning {

/// A stage of one run: a split of the schedule with the copies that it waits for.
struct StageWork {
  int backend = 0;
  double seconds = 0;  ///< while nothing else runs
};

/// Cores that a backend keeps busy in each domain of the machine.
using CoreDemand = std::vector<double>;

/// Runs that are alike, one after the other.
struct AlikeRuns {
  int64_t count = 1;
  std::vector<StageWork> stages;  ///< in order; all runs have the same number
};

/// `slots`: how many runs may lie between two stages (sched::copies_for). `demand`: of each backend; `cores`: of each
/// domain, 0: no limit. The result is at least the time in which the cores of each domain do all work. Beyond some
/// hundreds of alike runs, each run takes the average of the runs before.
double pipeline_seconds(std::span<const AlikeRuns> runs, int slots, std::span<const CoreDemand> demand,
                        std::span<const double> cores);

}  // namespace shoal::tuning
