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

/// `runs`: the stages of each run, in order; every run has as many. `slots`: how many runs may lie between two stages
/// (sched::copies_for). `demand`: of each backend; `cores`: of each domain, 0: no limit. Backends that
/// run at the same time and want more cores than a domain has are all slowed in proportion.
double pipeline_seconds(std::span<const std::vector<StageWork>> runs, int slots, std::span<const CoreDemand> demand,
                        std::span<const double> cores);

/// Runs that are alike, one after the other.
struct AlikeRuns {
  int64_t count = 1;
  std::vector<StageWork> stages;
};
/// The same for any number of runs. Of more than some hundreds that are alike the first are followed one by one; from
/// then on each takes as long as the next ones do on average. What a run takes there repeats itself after a few runs:
/// the error is at most the time of one run alone for every 64 that are not followed, and none where the period
/// divides that.
double pipeline_seconds(std::span<const AlikeRuns> runs, int slots, std::span<const CoreDemand> demand,
                        std::span<const double> cores);

}  // namespace shoal::tuning
