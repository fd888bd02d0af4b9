// What the emulator of the CUDA runtime offers libraries that are loaded beside it and, in earnest, bring CUDA's own
// runtime: the stand-in for NCCL. Looked up by name in the program or plug-in that calls the library.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace shoal::cuda::emulator {

struct Exported {
  /// Queues work, or captures it; it is destroyed when it has run, or with the last graph that it is part of.
  cudaError_t (*enqueue)(cudaStream_t stream, std::function<void()> work);
  cudaError_t (*get_device)(int* gpu);
};

}  // namespace shoal::cuda::emulator

extern "C" __attribute__((visibility("default"))) const shoal::cuda::emulator::Exported* shoal_emulated_cuda();
