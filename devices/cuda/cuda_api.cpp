#include "devices/cuda/cuda_api.h"

#include <limits>

#include "base/error.h"

namespace shoal::cuda {
namespace {

/// What is allocated in a stream's order has an access list of its own.
cudaError_t set_pool_access(int gpu, int peer, cudaMemAccessFlags flags) {
  cudaMemPool_t pool = nullptr;
  const cudaError_t status = cudaDeviceGetDefaultMemPool(&pool, gpu);
  if (status != cudaSuccess) return status;
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, peer}, flags};
  return cudaMemPoolSetAccess(pool, &access, 1);
}

}  // namespace

void check(cudaError_t status, std::string_view owner, std::string_view what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that a program can go on after must not be found again by the next call
  if (status == cudaErrorMemoryAllocation) {
    fail<OutOfMemory>("[{}] cannot {}: out of memory: use more devices, or give this one a smaller share", owner, what);
  }
  fail<DeviceError>("[{}] cannot {}: {} ({})", owner, what, cudaGetErrorString(status), cudaGetErrorName(status));
}

cudaError_t turn_on_peer_access(int gpu, int peer) {
  const CurrentGpu current(gpu);
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
  } else if (status != cudaSuccess) {
    return status;
  }
  const cudaError_t pool = set_pool_access(peer, gpu, cudaMemAccessFlagsProtReadWrite);
  if (pool != cudaSuccess && status == cudaSuccess) cudaDeviceDisablePeerAccess(peer);
  return pool;
}

void turn_off_peer_access(int gpu, int peer) {
  const CurrentGpu current(gpu);
  set_pool_access(peer, gpu, cudaMemAccessFlagsProtNone);
  cudaDeviceDisablePeerAccess(peer);
  cudaGetLastError();
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
