#include "devices/cuda/cuda_api.h"

#include <limits>

#include "base/error.h"

namespace shoal::cuda {
void check(cudaError_t status, std::string_view owner, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the last error, so that the next check does not report it again
  if (status == cudaErrorMemoryAllocation) {
    fail<OutOfMemory>("[{}] cannot {}: out of memory: use more devices, or give this device a smaller share", owner,
                      what);
  }
  fail<DeviceError>("[{}] cannot {}: {} ({})", owner, what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void keep_pool_memory(int gpu) {
  cudaMemPool_t pool = nullptr;
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  const bool done = cudaDeviceGetDefaultMemPool(&pool, gpu) == cudaSuccess &&
                    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess;
  if (!done) cudaGetLastError();
}

size_t kept_pool_memory(int gpu) {
  cudaMemPool_t pool = nullptr;
  uint64_t reserved = 0, used = 0;
  const bool known = cudaDeviceGetDefaultMemPool(&pool, gpu) == cudaSuccess &&
                     cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) == cudaSuccess &&
                     cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) == cudaSuccess;
  if (!known) cudaGetLastError();
  return known && reserved > used ? reserved - used : 0;
}

void trim_pool(int gpu) {
  cudaMemPool_t pool = nullptr;
  if (cudaDeviceGetDefaultMemPool(&pool, gpu) != cudaSuccess || cudaMemPoolTrimTo(pool, 0) != cudaSuccess) {
    cudaGetLastError();
  }
}

CurrentGpu::CurrentGpu(int gpu) : gpu_(gpu) {
  cudaGetDevice(&before_);
  if (before_ != gpu_) cudaSetDevice(gpu_);
}

CurrentGpu::~CurrentGpu() {
  if (before_ != gpu_) cudaSetDevice(before_);
}

}  // namespace shoal::cuda
