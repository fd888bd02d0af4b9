// CpuBackend is the stream of a CPU device. Its work is queued on a worker thread (worker.h). CpuEvent is a position in
// such a stream. For the threading rules see devices/backend.h.
#pragma once

#include <memory>
#include <string>

#include "devices/backend.h"
#include "devices/cpu/cpu_family.h"
#include "devices/cpu/worker.h"

namespace shoal::cpu {

class CpuBackend final : public Backend {
 public:
  CpuBackend(CpuDevice& device, int threads);
  ~CpuBackend() override { plans().clear(); }

  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  int threads() const { return threads_; }
  /// Replaces the worker by a worker with this many threads. Before the replacement, waits for queued work. If the
  /// queued work failed, throws the failure and changes nothing. Drops cached plans, which are compiled again when
  /// needed. Plans outside the cache use at most the number of threads for which they were compiled.
  void set_threads(int threads);

  void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override;
  void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) override;
  void copy_async(const Tensor& src, Backend& to, Tensor& dst) override;
  void hold() override {
    ++holds_;
    worker_->hold();
  }
  void release() override {
    --holds_;
    worker_->release();
  }
  void synchronize() override { worker_->synchronize(); }
  /// See functions::kWaitForQueued.
  functions::QueueState wait_for_queued(std::chrono::nanoseconds time) { return worker_->wait_for_queued(time); }
  using Backend::compute_async;
  using Backend::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override;
  bool update_plan(GraphPlan& plan, Graph& graph) override;
  void compute_async(GraphPlan& plan, int first, int last) override;
  bool set_abort_callback(AbortCallback callback) override;
  bool enqueue(const HostTask& task) override;
  /// See functions::kCancel. This function must not run concurrently with set_threads().
  void cancel(std::string_view reason) { worker_->cancel(reason); }
  void set_tracer(Tracer* tracer) override;

  /// The position in the stream after all work queued so far.
  WaitWork here() {
    worker_->publish();
    return {&worker_->timeline(), worker_->position()};
  }
  /// Makes later work wait for a position, which may be in the stream of another worker.
  void wait(const WaitWork& position) { worker_->push(position); }
  /// Blocks the host until this backend reaches a position. Failures remain stored for synchronize().
  void wait_for(const WaitWork& position) {
    worker_->publish();
    if (position.timeline != nullptr) position.timeline->finished.wait_for(position.position, Waiter::kHost);
  }

 private:
  CpuDevice& device_;
  DeviceUse use_;
  FamilyUse family_use_{device_};
  int threads_;
  int holds_ = 0;
  AbortCallback abort_;
  TraceRowUse trace_;
  std::unique_ptr<Worker> worker_;  ///< declared after `trace_`, because the worker writes to `trace_`
};

class CpuEvent final : public Event {
 public:
  explicit CpuEvent(CpuDevice& device) : device_(device) {}
  Device& device() const override { return device_; }
  void record(Backend& backend) override;
  /// A backend of another family waits in a host task. If that backend cannot run host tasks, the host waits instead.
  void wait(Backend& backend) override;
  void synchronize() override;

 private:
  CpuDevice& device_;
  FamilyUse family_use_{device_};
  WaitWork recorded_{nullptr, 0};
};

}  // namespace shoal::cpu
