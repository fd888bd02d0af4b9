// The family "CUDA" and its devices: each physical GPU, or k virtual devices on each (SHOAL_CUDA_DEVICES_PER_GPU=k),
// which have a share of its memory and streams of their own, so that everything about several devices runs on one GPU.
// Without a GPU or a driver the family has no devices and its features say why. Thread-safe.
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

/// A physical GPU. Until something is to run or lie on it, nothing is made there: a context takes time and memory.
struct Gpu {
  GpuTraits traits;
  std::string name;    ///< "NVIDIA H200"
  std::string pci_id;  ///< "0000:3b:00.0"
  size_t memory = 0;   ///< total bytes
  bool integrated = false;
  CudaFamily* family = nullptr;
  cudaStream_t stream = nullptr;  ///< see transfers()

  /// For blocking copies; work of no backend. The first use prepares the GPU (CudaFamily::prepare). Never destroyed:
  /// the driver may be gone by then.
  cudaStream_t transfers() const;
};

class CudaDevice final : public Device {
 public:
  /// Number `part` of the `parts` devices of a GPU, which must outlive it.
  CudaDevice(BackendReg& reg, std::string name, const Gpu& gpu, int part, int parts);

  std::string name() const override { return name_; }
  std::string description() const override;
  DeviceType type() const override { return gpu_.integrated ? DeviceType::kIntegratedGpu : DeviceType::kGpu; }
  DeviceMemory memory() const override;
  DeviceProps props() const override;
  BackendReg& reg() const override { return reg_; }
  /// params: "graphs=0" runs every kernel by a launch of its own instead of CUDA graphs; default: SwitchedOff::graphs.
  std::unique_ptr<Backend> init(std::string_view params = {}) override;
  BufferType& buffer_type() override { return type_; }
  BufferType* host_buffer_type() override { return &pinned_; }
  bool supports_op(const Tensor& node) const override;
  bool offload_op(const Tensor& node) const override { return is_worth_bringing(node); }
  size_t workspace_size(const Tensor& node) const override;
  std::unique_ptr<Event> new_event() override;

  const Gpu& gpu() const { return gpu_; }
  /// Counts an allocation. Throws OutOfMemory when it exceeds this device's share.
  void take(size_t size);
  void give_back(size_t size) { used_ -= size; }
  /// Kernels are launched one by one because CUDA does not make a graph of them: a problem of the family.
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
  /// `functions`: of later folders, by name (BackendReg::function). Throws InvalidArgument for a bad environment
  /// variable.
  explicit CudaFamily(std::function<void*(std::string_view)> functions = {});
  ~CudaFamily() override;
  std::string name() const override { return "CUDA"; }
  std::span<Device* const> devices() const override { return listed_; }
  void* function(std::string_view name) const override;
  /// Why there are no devices; empty when there are some.
  const std::string& reason() const { return reason_; }
  /// By SHOAL_CUDA_OFF.
  const SwitchedOff& off() const { return off_; }
  /// GPUs that cannot be used though they are there, each with the reason: "CUDA0, CUDA1 (NVIDIA H200, sm_90): ...".
  const std::string& unusable() const { return unusable_; }
  /// Pairs of GPUs whose direct copies are wrong, and what has been noted.
  std::string problems() const;
  /// What works, but slower than it should. Kept once.
  void note_problem(const std::string& problem);
  /// Makes what every use of a GPU needs, and connects it to the others that are in use: kernels and copies may then
  /// use each other's memory, where the hardware can and a copy there and back comes out right. Throws DeviceError.
  void prepare(Gpu& gpu);
  /// Waits for what is queued on the GPU's transfers(), the ends of buffers, if it is prepared.
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

/// Each device has a thread that waits for its GPU, and CUDA lets them spin unless there are more GPUs than processors.
/// Are there so many that the host's thread would have no processor left?
bool waits_by_yielding(size_t devices, size_t processors);

/// Devices that share each physical GPU: SHOAL_CUDA_DEVICES_PER_GPU, 1 to 64, or 1. Throws InvalidArgument.
int devices_per_gpu();

}  // namespace shoal::cuda
