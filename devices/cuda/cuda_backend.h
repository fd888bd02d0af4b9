// CudaBackend: the stream of a CUDA device, fed by a launcher thread (launcher.h); CudaEvent: a mark in such a stream.
// Thread rules as in devices/backend.h.
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
  /// Without `graphs` every kernel is launched by itself.
  CudaBackend(CudaDevice& device, bool graphs);
  ~CudaBackend() override { plans().clear(); }

  std::string name() const override { return device_.name(); }
  Device& device() const override { return device_; }
  CudaDevice& cuda_device() const { return device_; }
  bool uses_graphs() const { return graphs_; }

  void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override;
  void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) override;
  /// Directly between CUDA devices where both tensors are contiguous.
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
  /// Waits for queued work, failures of which stay.
  bool start_recording() override;
  std::unique_ptr<Recording> stop_recording() override;
  void replay_async(Recording& recording) override;

  /// Queues what launches kernels itself.
  void push_launch(const LaunchTask& task) { launcher_.push(task); }
  Launcher& launcher() { return launcher_; }
  /// Everything queued here before is finished when others get past this mark; one reference, the caller's.
  Mark* here();
  void wait(Mark* mark);
  /// Waits for queued work; failures stay for synchronize().
  void finish() { launcher_.finish(); }

 private:
  CudaDevice& device_;
  FamilyUse use_{device_};
  bool graphs_;
  TraceRowUse trace_;
  Launcher launcher_;  ///< writes to the row
};

/// Where a rank of a mesh runs.
struct Place {
  int gpu = 0;  ///< CUDA's number
  cudaStream_t stream = nullptr;
  std::string device_name = "";  ///< for messages
};
/// Of the backends of a mesh, all of CUDA devices.
std::vector<Place> places_of(std::span<Backend* const> backends);

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(CudaDevice& device) : device_(device) {}
  ~CudaEvent() override;
  Device& device() const override { return device_; }
  void record(Backend& backend) override;
  /// A backend of another family waits in a host task; for one that runs none the host waits.
  void wait(Backend& backend) override;
  void synchronize() override;

 private:
  CudaDevice& device_;
  FamilyUse use_{device_};
  Mark* recorded_ = nullptr;
};

}  // namespace shoal::cuda
