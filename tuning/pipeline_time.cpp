#include "tuning/pipeline_time.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace shoal::tuning {
namespace {

/// This many runs show what one takes in a full pipeline.
constexpr int64_t kObservedRuns = 64;

/// One stage of one run, on its way.
struct Task {
  int run = 0, stage = 0, backend = 0;
  double left = 0;
  bool begun = false, done = false;
};

/// What a backend has to do: numbers of tasks, and which of them is next.
struct Queue {
  std::vector<size_t> tasks;
  size_t next = 0;
  bool busy = false;
};

/// Virtual time of a pipeline. A backend does its tasks in the order in which they are queued: by run, then by stage.
class Pipeline {
 public:
  Pipeline(std::span<const std::vector<StageWork>> runs, int slots, std::span<const CoreDemand> demand,
           std::span<const double> cores)
      : stages_(static_cast<int>(runs.front().size())),
        slots_(slots),
        demand_(demand),
        cores_(cores),
        queues_(demand.size()) {
    tasks_.reserve(runs.size() * runs.front().size());
    for (size_t run = 0; run < runs.size(); ++run) {
      check(static_cast<int>(runs[run].size()) == stages_, "runs of {} and {} stages", runs[run].size(), stages_);
      for (int stage = 0; stage < stages_; ++stage) {
        const StageWork& work = runs[run][static_cast<size_t>(stage)];
        queues_[static_cast<size_t>(work.backend)].tasks.push_back(tasks_.size());
        tasks_.push_back({static_cast<int>(run), stage, work.backend, std::max(work.seconds, 0.0)});
      }
    }
  }

  double run() {
    double now = 0;
    for (size_t left = tasks_.size(); left > 0;) {
      begin_tasks();
      double next = std::numeric_limits<double>::infinity();
      for (const Task* task : running_) next = std::min(next, task->left / rate(*task));
      check(!running_.empty(), "a pipeline stands still");
      now += next;
      std::vector<double> rates;
      for (const Task* task : running_) rates.push_back(rate(*task));
      for (size_t i = 0; i < running_.size(); ++i) advance(*running_[i], next * rates[i]);
      for (const Task* task : running_) queues_[static_cast<size_t>(task->backend)].busy = !task->done;
      left -= static_cast<size_t>(std::erase_if(running_, [](const Task* task) { return task->done; }));
    }
    return now;
  }

 private:
  const Task& task(int run, int stage) const {
    return tasks_[static_cast<size_t>(run) * static_cast<size_t>(stages_) + static_cast<size_t>(stage)];
  }

  static void advance(Task& task, double seconds) {
    task.left -= seconds;
    // What is left by rounding is nothing.
    task.done = task.left <= 1e-15 + 1e-12 * seconds;
  }

  bool is_ready(const Task& t) const {
    if (t.stage > 0 && !task(t.run, t.stage - 1).done) return false;
    const int before = t.run - slots_;  // whose slot this one takes
    if (before < 0) return true;
    return task(before, std::min(t.stage + 1, stages_ - 1)).begun;
  }

  /// In the order in which they are queued: the beginning of a task may free the slot that a later one waits for.
  void begin_tasks() {
    std::vector<size_t> first;
    for (const Queue& queue : queues_) {
      if (!queue.busy && queue.next < queue.tasks.size()) first.push_back(queue.tasks[queue.next]);
    }
    std::sort(first.begin(), first.end());
    for (const size_t number : first) {
      Task& t = tasks_[number];
      if (!is_ready(t)) continue;
      t.begun = true;
      Queue& queue = queues_[static_cast<size_t>(t.backend)];
      queue.busy = true;
      ++queue.next;
      running_.push_back(&t);
    }
  }

  /// Part of its speed that a task has among those that run.
  double rate(const Task& t) const {
    double rate = 1;
    for (size_t domain = 0; domain < cores_.size(); ++domain) {
      if (cores_[domain] <= 0 || demand_[static_cast<size_t>(t.backend)][domain] <= 0) continue;
      double wanted = 0;
      for (const Task* other : running_) {
        wanted += std::min(demand_[static_cast<size_t>(other->backend)][domain], cores_[domain]);
      }
      rate = std::min(rate, cores_[domain] / wanted);
    }
    return rate;
  }

  int stages_, slots_;
  std::span<const CoreDemand> demand_;
  std::span<const double> cores_;
  std::vector<Task> tasks_;    ///< by run, then by stage
  std::vector<Queue> queues_;  ///< by backend
  std::vector<Task*> running_;
};

}  // namespace

double pipeline_seconds(std::span<const std::vector<StageWork>> runs, int slots, std::span<const CoreDemand> demand,
                        std::span<const double> cores) {
  if (runs.empty() || runs.front().empty()) return 0;
  return Pipeline(runs, std::max(slots, 1), demand, cores).run();
}

double pipeline_seconds(std::span<const AlikeRuns> runs, int slots, std::span<const CoreDemand> demand,
                        std::span<const double> cores) {
  std::vector<std::vector<StageWork>> followed;
  double rest = 0;
  for (const AlikeRuns& alike : runs) {
    // A pipeline is full when a run has reached its end.
    const int64_t filling = std::max<int64_t>(kObservedRuns, 2 * static_cast<int64_t>(alike.stages.size()));
    int64_t count = alike.count;
    if (count > 2 * filling) {
      const auto seconds = [&](int64_t some) {
        const std::vector<std::vector<StageWork>> alone(static_cast<size_t>(some), alike.stages);
        return pipeline_seconds(alone, slots, demand, cores);
      };
      const double each = (seconds(filling + kObservedRuns) - seconds(filling)) / static_cast<double>(kObservedRuns);
      rest += each * static_cast<double>(count - filling);
      count = filling;
    }
    followed.insert(followed.end(), static_cast<size_t>(std::max<int64_t>(count, 0)), alike.stages);
  }
  return pipeline_seconds(followed, slots, demand, cores) + rest;
}

}  // namespace shoal::tuning
