// Raises a kernel's limit of shared memory on a GPU, and makes the kernel prefer shared memory to L1 cache.
#include <map>
#include <mutex>

#include "devices/cuda/kernels/platform.h"

namespace shoal::cuda {

void prepare_kernel(const void* kernel, size_t shared_bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, size_t> allowed;
  int gpu = 0;
  cudaGetDevice(&gpu);
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = allowed.try_emplace({gpu, kernel}, kPlainSharedBytes);
  if (is_new) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }
  if (shared_bytes <= entry->second) return;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)) ==
      cudaSuccess) {
    entry->second = shared_bytes;
  }
}

}  // namespace shoal::cuda
