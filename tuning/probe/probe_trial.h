// A Trial is a graph on one backend that is ready to be timed. A probe times such graphs to measure a device. Only one
// thread may use a trial.
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

/// The median of `values`, which must not be empty.
double median(std::vector<double> values);
/// Sets the function that poll() calls in this thread during the lifetime of this object. The function may throw an
/// exception to stop a probe.
class PollScope {
 public:
  explicit PollScope(const std::function<void()>& poll);
  ~PollScope();
  PollScope(const PollScope&) = delete;
  PollScope& operator=(const PollScope&) = delete;

 private:
  const std::function<void()>* before_;
};
/// Calls the function that a PollScope has set in this thread. Probes call poll() between runs, when no work is queued
/// and no run is timed.
void poll();

inline constexpr size_t kMega = size_t{1} << 20;
/// Minimum duration of a series of runs, in seconds. In a shorter series, most of the time would be needed to start the
/// device and to read the clock.
inline constexpr double kSeries = 2e-3;

/// Calls `sample` repeatedly for about `budget` seconds, at least 3 and at most 50 times. Returns the median of the
/// results. If the first call or the first two calls take at least 3 seconds in total, no further call follows.
double repeat_for(double budget, const std::function<double()>& sample);
/// Calls `work` and returns its duration in seconds.
double seconds_of(const std::function<void()>& work);

/// The leaf tensors of trial graphs. They contain numbers of ordinary size, because the duration of an op may differ
/// for zeros, huge numbers or tiny numbers.
class TrialLeaves {
 public:
  explicit TrialLeaves(Device& device) : device_(device) {}
  /// Adds a leaf. A weight is placed in memory of the type Device::weights_type(), like the weights of a model. Any
  /// other leaf is placed in memory of the type Device::buffer_type().
  Tensor* add(DType dtype, Shape shape, Role role);
  Tensor* ints(std::vector<int32_t> values);
  /// Allocates and fills all leaves.
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
  /// Makes the plan. Must be called after TrialLeaves::place().
  void compile(const PlanOptions& options = {}) { plan_ = backend_.create_plan(graph_, options); }
  GraphPlan& plan() { return *plan_; }
  /// Queues `times` runs and submits them in one batch (HeldBackend).
  void start(int times);
  /// Times several series of consecutive runs within `budget` seconds. Returns the median of the seconds per run.
  double measure(double budget);

 private:
  Backend& backend_;
  Graph graph_;
  std::unique_ptr<GraphPlan> plan_;
};

}  // namespace shoal::probe
