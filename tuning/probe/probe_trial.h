// A graph on one backend, ready to be timed: what a probe measures devices with. One thread.
//
//   TrialLeaves leaves(device);
//   Tensor* w = leaves.add(DType::kQ4_0, {2048, 2048, 1, 1}, Role::kWeight);
//   Tensor* x = leaves.add(DType::kF32, {2048, 1, 1, 1}, Role::kCache);
//   leaves.place();
//   Trial trial(*backend);
//   mul_mat(trial.graph(), w, x);
//   trial.compile();
//   double seconds = trial.measure(0.02);
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "devices/backend.h"
#include "devices/device.h"
#include "graph/graph.h"

namespace shoal::probe {

/// The middle one. Not of nothing.
double median(std::vector<double> values);
/// While it lives, poll() of this thread calls this, which may throw to end a probe.
class PollScope {
 public:
  explicit PollScope(const std::function<void()>& poll);
  ~PollScope();
  PollScope(const PollScope&) = delete;
  PollScope& operator=(const PollScope&) = delete;

 private:
  const std::function<void()>* before_;
};
/// Between runs, when nothing is queued and no clock runs.
void poll();

inline constexpr size_t kMega = size_t{1} << 20;
/// Seconds that a series of runs takes at least, so that waking the device and reading the clock do not count.
inline constexpr double kSeries = 2e-3;

/// Median of what `sample` returns, called for about `budget` seconds and at least three times, or until seconds have
/// passed.
double repeat_for(double budget, const std::function<double()>& sample);
/// Seconds that `work` takes.
double seconds_of(const std::function<void()>& work);

/// What graphs of trials read. Rows of ordinary numbers, because zeros, huge and tiny ones may be faster or slower.
class TrialLeaves {
 public:
  explicit TrialLeaves(Device& device) : device_(device) {}
  /// Weights lie where models put them (Device::weights_type), everything else in the device's own memory.
  Tensor* add(DType dtype, Shape shape, Role role);
  Tensor* ints(std::vector<int32_t> values);
  /// Allocates and fills everything.
  void place();

 private:
  Device& device_;
  TensorContext context_;
  std::vector<Tensor*> weights_, others_;
  std::vector<std::pair<Tensor*, std::vector<int32_t>>> ints_;
  std::vector<std::unique_ptr<Buffer>> memory_;
};

class Trial {
 public:
  explicit Trial(Backend& backend) : backend_(backend) {}

  Graph& graph() { return graph_; }
  /// Once the leaves are placed.
  void compile(const PlanOptions& options = {}) { plan_ = backend_.create_plan(graph_, options); }
  GraphPlan& plan() { return *plan_; }
  /// Queues the plan this many times, in one piece.
  void start(int times);
  /// Seconds of one of many runs that follow each other: median of several such series within the budget.
  double measure(double budget);

 private:
  Backend& backend_;
  Graph graph_;
  std::unique_ptr<GraphPlan> plan_;
};

}  // namespace shoal::probe
