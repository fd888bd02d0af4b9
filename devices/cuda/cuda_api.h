// Helpers for calls to the CUDA runtime. check() turns errors into exceptions. CurrentGpu sets a thread's current GPU
// for a scope. All functions are thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace shoal::cuda {

/// Throws OutOfMemory or DeviceError if `status` is an error. Example of a message: "[CUDA0] cannot allocate memory:
/// out of memory (cudaErrorMemoryAllocation)". `what` is the text after "cannot", here "allocate memory".
void check(cudaError_t status, std::string_view owner, std::string_view what);

/// Makes the GPU's memory pool keep freed memory. By default, the pool releases this memory whenever the host waits for
/// a stream. The release may wait for all work of the GPU.
void keep_pool_memory(int gpu);
/// Number of unused bytes that the GPU's memory pool keeps.
size_t kept_pool_memory(int gpu);
/// Releases the unused bytes of the GPU's memory pool. May wait for the GPU.
void trim_pool(int gpu);

/// Makes a GPU current for this thread. The destructor restores the previous GPU.
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
