#include "tuning/pipeline_time.h"

#include <algorithm>

#include "base/error.h"

namespace shoal::tuning {
namespace {

/// Number of runs that fill the pipeline. The time of a run in a full pipeline is measured over the same number of
/// additional runs.
constexpr int64_t kObservedRuns = 256;

/// Start and end times of the stages of the latest runs. A backend executes its stages in the order of runs, and within
/// a run in the order of stages.
class Pipeline {
 public:
  Pipeline(size_t stages, int slots, size_t backends)
      : begins_(static_cast<size_t>(slots), std::vector<double>(stages, 0.0)), free_(backends, 0.0) {}

  void run(std::span<const StageWork> stages) {
    // Start times of the earlier run whose slots (memory for values between stages) this run reuses. The loop replaces
    // these times by the start times of this run.
    std::vector<double>& begins = begins_[next_++ % begins_.size()];
    double done = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      double& free = free_[static_cast<size_t>(stages[s].backend)];
      const double slot = begins[std::min(s + 1, stages.size() - 1)];
      begins[s] = std::max({done, free, slot});
      free = done = begins[s] + std::max(stages[s].seconds, 0.0);
    }
  }

  double end() const { return *std::max_element(free_.begin(), free_.end()); }

  /// Delays all stages by the time of runs that are not simulated.
  void delay(double seconds) {
    for (double& free : free_) free += seconds;
    for (std::vector<double>& run : begins_) {
      for (double& begin : run) begin += seconds;
    }
  }

 private:
  std::vector<std::vector<double>> begins_;  ///< for each of the latest runs: the start time of each stage
  std::vector<double> free_;                 ///< for each backend: the time at which it finishes its queued stages
  size_t next_ = 0;
};

}  // namespace

double pipeline_seconds(std::span<const AlikeRuns> runs, int slots, std::span<const CoreDemand> demand,
                        std::span<const double> cores) {
  if (runs.empty() || runs.front().stages.empty()) return 0;
  Pipeline pipeline(runs.front().stages.size(), std::max(slots, 1), demand.size());
  std::vector<double> busy(cores.size(), 0.0);  // for each domain: seconds that all cores of the domain together need
                                                // for all work
  for (const AlikeRuns& alike : runs) {
    check(alike.stages.size() == runs.front().stages.size(),
          "got runs of {} and {} stages; all runs need the same number of stages", alike.stages.size(),
          runs.front().stages.size());
    double half = 0;
    const int64_t followed = std::min(alike.count, 2 * kObservedRuns);
    for (int64_t i = 0; i < followed; ++i) {
      if (i == kObservedRuns) half = pipeline.end();
      pipeline.run(alike.stages);
    }
    const auto rest = static_cast<double>(alike.count - followed);
    if (rest > 0) pipeline.delay(rest * (pipeline.end() - half) / static_cast<double>(kObservedRuns));
    for (const StageWork& stage : alike.stages) {
      for (size_t d = 0; d < cores.size(); ++d) {
        if (cores[d] <= 0) continue;
        const double part = std::min(demand[static_cast<size_t>(stage.backend)][d] / cores[d], 1.0);
        busy[d] += part * stage.seconds * static_cast<double>(alike.count);
      }
    }
  }
  return std::max(pipeline.end(), busy.empty() ? 0.0 : *std::max_element(busy.begin(), busy.end()));
}

}  // namespace shoal::tuning
