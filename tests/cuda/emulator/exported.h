// Functions of the emulated CUDA runtime that the stand-in for NCCL calls. The stand-in looks up these functions by
// name in the program or plug-in that calls the stand-in. (A real NCCL library contains its own CUDA runtime.)
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace shoal::cuda::emulator {

struct Exported {
  /// Queues or captures `work`. Queued work is destroyed after it has run. Captured work is destroyed with the last
  /// graph that contains it.
  cudaError_t (*enqueue)(cudaStream_t stream, std::function<void()> work);
  cudaError_t (*get_device)(int* gpu);
};

}  // namespace shoal::cuda::emulator

extern "C" __attribute__((visibility("default"))) const shoal::cuda::emulator::Exported* shoal_emulated_cuda();
