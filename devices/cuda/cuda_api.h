// Calls of CUDA's runtime with errors as exceptions, and the current GPU of a thread as a scope. Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace shoal::cuda {

/// Throws OutOfMemory or DeviceError: "[CUDA0] cannot allocate memory: out of memory (cudaErrorMemoryAllocation)".
/// `what` completes "cannot ...".
void check(cudaError_t status, std::string_view owner, std::string_view what);

/// Lets the GPU's pool keep what is freed. By default it gives everything back whenever the host waits for a stream, in
/// a call that may wait for all that the GPU does.
void keep_pool_memory(int gpu);
/// Unused bytes that the GPU's pool keeps.
size_t kept_pool_memory(int gpu);
/// Gives them back. May wait for the GPU.
void trim_pool(int gpu);

/// Calls of this thread are for this GPU while it lives, and for the one before afterwards.
class CurrentGpu {
 public:
  explicit CurrentGpu(int gpu);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  int before_ = 0;
  int gpu_;
};

}  // namespace shoal::cuda
