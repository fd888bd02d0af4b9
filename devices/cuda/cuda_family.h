// The family "CUDA" and its devices. A device is a physical GPU or one of k virtual devices on a GPU
// (SHOAL_CUDA_DEVICES_PER_GPU=k). Each virtual device has its own streams and a share of the GPU's memory. So one GPU
// is enough to test code for several devices. If there is no GPU or no driver, the family has no devices, and its
// features contain the reason. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devices/cuda/cuda_buffer.h"
#include "devices/cuda/op_kernel.h"
#include "devices/device.h"
#include "devices/offload.h"

namespace shoal::cuda {

class CudaFamily;

/// A physical GPU. A CUDA context costs time and memory, so the GPU's context is created only at the first run or
/// allocation.
struct Gpu {
  GpuTraits traits;
  std::string name;    ///< "NVIDIA H200"
  std::string pci_id;  ///< "0000:3b:00.0"
  size_t memory = 0;   ///< total memory in bytes
  bool integrated = false;
  CudaFamily* family = nullptr;
  cudaStream_t stream = nullptr;  ///< returned by transfers()

  /// Returns the stream for blocking copies. No backend uses this stream. The first call prepares the GPU
  /// (CudaFamily::prepare). The stream is never destroyed, because the driver may already have shut down.
  cudaStream_t transfers() const;
};

class CudaDevice final : public Device {
 public:
  /// The device with index `part` among the `parts` devices on a GPU. The GPU must outlive the device.
  CudaDevice(BackendReg& reg, std::string name, const Gpu& gpu, int part, int parts);

  std::string name() const override { return name_; }
  std::string description() const override;
  DeviceType type() const override { return gpu_.integrated ? DeviceType::kIntegratedGpu : DeviceType::kGpu; }
  DeviceMemory memory() const override;
  DeviceProps props() const override;
  BackendReg& reg() const override { return reg_; }
  /// params: "graphs=0" launches every kernel separately instead of using CUDA graphs. The default depends on
  /// SwitchedOff::graphs.
  std::unique_ptr<Backend> init(std::string_view params = {}) override;
  BufferType& buffer_type() override { return type_; }
  BufferType* host_buffer_type() override { return &pinned_; }
  bool supports_op(const Tensor& node) const override;
  bool offload_op(const Tensor& node) const override { return is_worth_streaming(node); }
  size_t workspace_size(const Tensor& node) const override;
  std::unique_ptr<Event> new_event() override;

  const Gpu& gpu() const { return gpu_; }
  /// Adds `size` to the number of bytes in use. Throws OutOfMemory if the sum exceeds this device's share of the GPU's
  /// memory.
  void take(size_t size);
  void give_back(size_t size) { used_ -= size; }
  /// Reports to the family that CUDA could not create a graph, so this device launches kernels one by one.
  void note_no_graph(cudaError_t why) const;

 private:
  BackendReg& reg_;
  std::string name_;
  const Gpu& gpu_;
  int part_, parts_;
  std::atomic<size_t> used_{0};
  CudaBufferType type_{*this};
  PinnedBufferType pinned_{*this};
};

class CudaFamily final : public BackendReg {
 public:
  /// `functions` maps a name to a function of a higher layer (BackendReg::function). Throws InvalidArgument if an
  /// environment variable is invalid.
  explicit CudaFamily(std::function<void*(std::string_view)> functions = {});
  ~CudaFamily() override;
  std::string name() const override { return "CUDA"; }
  std::span<Device* const> devices() const override { return listed_; }
  void* function(std::string_view name) const override;
  /// The reason why there are no devices; empty if there are devices.
  const std::string& reason() const { return reason_; }
  /// Features switched off by SHOAL_CUDA_OFF.
  const SwitchedOff& off() const { return off_; }
  /// GPUs that are present but unusable, each with the reason: "CUDA0, CUDA1 (NVIDIA H200, sm_90): ...".
  const std::string& unusable() const { return unusable_; }
  /// Lists pairs of GPUs whose direct copies are wrong, and problems added by note_problem().
  std::string problems() const;
  /// Adds a problem that makes the program slower. Duplicates are dropped.
  void note_problem(const std::string& problem);
  /// Creates the transfer stream of a GPU, sets up the GPU's memory pool and wait mode, and connects the GPU to every
  /// other prepared GPU. Two connected GPUs can access each other's memory if the hardware supports peer access and
  /// test copies in both directions are correct. Throws DeviceError.
  void prepare(Gpu& gpu);
  /// Waits for the work on a prepared GPU's transfers() stream, including the release of buffers.
  void finish_transfers(const Gpu& gpu) const;

 private:
  void find_gpus();
  void add_problem(const std::string& problem);
  void connect(int one, int other);

  std::function<void*(std::string_view)> functions_;
  SwitchedOff off_;
  std::string reason_, unusable_;
  mutable std::mutex mutex_;
  std::string problems_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::vector<Device*> listed_;
};

/// Whether threads that wait for a GPU should yield. One thread per device waits. By default, CUDA makes these threads
/// spin if the machine has at least as many CPU cores (`processors`) as GPUs. If there are also at least as many
/// devices as CPU cores, spinning threads leave no core for the host's thread.
bool waits_by_yielding(size_t devices, size_t processors);

/// Number of devices on each physical GPU: the value of SHOAL_CUDA_DEVICES_PER_GPU (1 to 64), or 1 by default. Throws
/// InvalidArgument if the value is invalid.
int devices_per_gpu();

}  // namespace shoal::cuda
