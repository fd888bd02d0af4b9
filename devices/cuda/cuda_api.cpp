#include "devices/cuda/cuda_api.h"

#include "graph/error.h"

namespace shoal::cuda {

void check(cudaError_t status, std::string_view owner, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that a program can go on after must not be found again by the next call
  if (status == cudaErrorMemoryAllocation) {
    fail<OutOfMemory>("[{}] cannot {}: out of memory: use more devices, or give this one a smaller share", owner, what);
  }
  fail<DeviceError>("[{}] cannot {}: {} ({})", owner, what, cudaGetErrorString(status), cudaGetErrorName(status));
}

cudaError_t set_pool_access(int gpu, int peer, cudaMemAccessFlags flags) {
  cudaMemPool_t pool = nullptr;
  const cudaError_t status = cudaDeviceGetDefaultMemPool(&pool, gpu);
  if (status != cudaSuccess) return status;
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, peer}, flags};
  return cudaMemPoolSetAccess(pool, &access, 1);
}

CurrentGpu::CurrentGpu(int gpu) : gpu_(gpu) {
  cudaGetDevice(&before_);
  if (before_ != gpu_) cudaSetDevice(gpu_);
}

CurrentGpu::~CurrentGpu() {
  if (before_ != gpu_) cudaSetDevice(before_);
}

}  // namespace shoal::cuda
