// How much shared memory each kernel has been allowed to use on each GPU.
#include <map>
#include <mutex>

#include "devices/cuda/kernels/platform.h"

#ifndef SHOAL_CUDA_EMULATED
namespace shoal::cuda {

void allow_shared_bytes(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, size_t> allowed;
  int gpu = 0;
  cudaGetDevice(&gpu);
  const std::lock_guard lock(mutex);
  size_t& most = allowed[{gpu, kernel}];
  if (bytes <= most) return;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)) ==
      cudaSuccess) {
    most = bytes;
  }
}

}  // namespace shoal::cuda
#endif
