// CudaBackend is a CUDA stream of a device. A launcher thread submits the work of the stream (launcher.h). CudaEvent is
// an event recorded in such a stream. The thread rules of devices/backend.h apply.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "devices/backend.h"
#include "devices/cuda/cuda_family.h"
#include "devices/cuda/launcher.h"

namespace shoal::cuda {

class CudaBackend final : public Backend {
 public:
  /// If `graphs` is false, no CUDA graphs are used, and every kernel is launched separately.
  CudaBackend(CudaDevice& device, bool graphs);
  ~CudaBackend() override { plans().clear(); }

  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  CudaDevice& cuda_device() const { return device_; }
  bool uses_graphs() const { return graphs_; }

  void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override;
  void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) override;
  /// Copies directly between devices if `to` is a CUDA backend and both tensors are contiguous and on CUDA devices.
  void copy_async(const Tensor& src, Backend& to, Tensor& dst) override;
  void synchronize() override { launcher_.synchronize(); }
  /// See functions::kWaitForQueued.
  functions::QueueState wait_for_queued(std::chrono::nanoseconds time) { return launcher_.wait_for_queued(time); }
  using Backend::compute_async;
  using Backend::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) override;
  bool update_plan(GraphPlan& plan, Graph& graph) override;
  void compute_async(GraphPlan& plan, int first, int last) override;
  bool set_abort_callback(AbortCallback callback) override;
  /// The launcher waits for the stream, then runs the task.
  bool enqueue(const HostTask& task) override;
  void set_tracer(Tracer* tracer) override;
  bool has_own_memory() const override { return true; }
  void read_bytes_async(const void* from, void* to, size_t size) override;
  void write_bytes_async(void* to, const void* from, size_t size) override;
  /// Waits for queued work before the recording starts. synchronize() reports failures of that work.
  bool start_recording() override;
  std::unique_ptr<Recording> stop_recording() override;
  void replay_async(Recording& recording) override;

  /// Queues a task that launches its own kernels.
  void push_launch(const LaunchTask& task) { launcher_.push(task); }
  Launcher& launcher() { return launcher_; }
  /// Returns a mark (position in the stream, mark.h) that is reached after all work queued so far. The caller owns one
  /// reference to the mark.
  Mark* here();
  void wait(Mark* mark);
  /// Waits for queued work. synchronize() reports failures of that work.
  void finish() { launcher_.finish(); }

 private:
  CudaDevice& device_;
  FamilyUse use_{device_};
  bool graphs_;
  TraceRowUse trace_;
  Launcher launcher_;  ///< destroyed before trace_, because the launcher writes to the trace row
};

/// The device on which one rank of a mesh runs.
struct Place {
  int gpu = 0;  ///< device number of the CUDA runtime
  cudaStream_t stream = nullptr;
  std::string device_name = "";  ///< for error messages
};
/// Returns the places of a mesh's backends. All backends must be CUDA backends.
std::vector<Place> places_of(std::span<Backend* const> backends);

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(CudaDevice& device) : device_(device) {}
  ~CudaEvent() override;
  Device& device() const override { return device_; }
  void record(Backend& backend) override;
  /// A backend of another family waits in a host task. If `backend` cannot run host tasks, the calling thread waits.
  void wait(Backend& backend) override;
  void synchronize() override;

 private:
  CudaDevice& device_;
  FamilyUse use_{device_};
  Mark* recorded_ = nullptr;
};

}  // namespace shoal::cuda
