#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/emulator/shoal_cuda_emulator.h"

namespace shoal::cuda::emulator {
namespace {

constexpr size_t kSharedBytes = 48 * 1024;
constexpr size_t kMostSharedBytes = 227 * 1024;
constexpr unsigned kMostBlocks = 65535;  // in y and z

cudaError_t check_size(const LaunchSize& size, size_t allowed_shared) {
  const dim3 &grid = size.grid, &block = size.block;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > kMostBlocks ||
      grid.z > kMostBlocks) {
    return cudaErrorInvalidConfiguration;
  }
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64) {
    return cudaErrorInvalidConfiguration;
  }
  return size.shared_bytes > allowed_shared ? cudaErrorInvalidValue : cudaSuccess;
}

size_t allowed_shared_bytes(const void* function) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().dynamic_shared.find(function);
  return found == runtime().dynamic_shared.end() ? kSharedBytes : static_cast<size_t>(found->second);
}

/// SHOAL_EMULATED_LAZY=1: does the driver load kernels when they are first used?
bool loads_late() {
  const char* loading = std::getenv("CUDA_MODULE_LOADING");
  return setting("SHOAL_EMULATED_LAZY", 0) != 0 && (loading == nullptr || std::string_view(loading) != "EAGER");
}

/// The first use of a kernel on a GPU: loading it waits until the GPU is idle, and no other thread launches meanwhile.
void load(const void* function, int gpu) {
  if (!loads_late()) return;
  {
    const std::lock_guard lock(runtime().mutex);
    if (!runtime().loaded.insert({function, gpu}).second) return;
  }
  const DriverLock lock(gpu);
  synchronize_gpu(gpu);
}

}  // namespace

void unload_kernels() {
  const std::lock_guard lock(runtime().mutex);
  runtime().loaded.clear();
}

void launch_kernel(cudaStream_t handle, const LaunchSize& size, const void* function, std::function<void()> kernel) {
  // As platform.h does for GPUs.
  if (size.shared_bytes > kSharedBytes) {
    cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(size.shared_bytes));
  }
  api("cudaLaunchKernel", [&] {
    Stream* const stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    const cudaError_t status = check_size(size, allowed_shared_bytes(function));
    if (status != cudaSuccess) return status;
    load(function, stream->gpu());
    const Room room = room_of(function, size_t{size.block.x} * size.block.y * size.block.z, size.shared_bytes);
    return submit(*stream, {OperationKind::kKernel,
                            {},
                            std::make_shared<const Kernel>(Kernel{size, std::move(kernel), room, stream->gpu()})});
  });
}

namespace {

bool flag_is_there(const volatile uint32_t* address, uint32_t value, unsigned flags) {
  const uint32_t now = __atomic_load_n(address, __ATOMIC_ACQUIRE);
  switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return ~(now | value) != 0;
    default:
      return static_cast<int32_t>(now - value) >= 0;
  }
}

CUresult queue_flag(CUstream handle, CUdeviceptr address, std::function<void(uint32_t*)> run) {
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto* const flag = reinterpret_cast<uint32_t*>(address);
  if (!find_place(flag).known || address % 4 != 0) return CUDA_ERROR_INVALID_VALUE;
  const cudaError_t status =
      submit(*stream, {OperationKind::kMemoryFlag, [flag, run = std::move(run)](Workers&) { run(flag); }});
  return status == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult stream_wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return queue_flag(stream, address, [value, flags](const uint32_t* flag) {
    for (int pauses = 0; !flag_is_there(flag, value, flags); ++pauses) {
      if (pauses < 100) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  });
}

CUresult stream_write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return queue_flag(stream, address, [value](uint32_t* flag) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); });
}

cudaError_t entry_point(const char* symbol, void** function, cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (std::strcmp(symbol, "cuStreamWaitValue32") == 0) {
    *function = reinterpret_cast<void*>(&stream_wait_value);
  } else if (std::strcmp(symbol, "cuStreamWriteValue32") == 0) {
    *function = reinterpret_cast<void*>(&stream_write_value);
  }
  const bool found = *function != nullptr;
  if (result != nullptr) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return found || result != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
}

}  // namespace
}  // namespace shoal::cuda::emulator

using namespace shoal::cuda::emulator;  // NOLINT: definitions of the runtime's functions

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return api("cudaGetDriverEntryPoint", [&] { return entry_point(symbol, function, result); });
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return api("cudaGetDriverEntryPoint", [&] { return entry_point(symbol, function, result); });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return api("cudaFuncSetAttribute", [&] {
    load(function, current_gpu());
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<size_t>(value) > kMostSharedBytes) return cudaErrorInvalidValue;
    const std::lock_guard lock(runtime().mutex);
    runtime().dynamic_shared[function] = value;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return api("cudaFuncGetAttributes", [&] {
    if (function == nullptr) return cudaErrorInvalidDeviceFunction;
    load(function, current_gpu());
    const std::lock_guard lock(runtime().mutex);
    const auto allowed = runtime().dynamic_shared.find(function);
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = allowed == runtime().dynamic_shared.end() ? 48 * 1024 : allowed->second;
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                          size_t shared_bytes) {
  return api("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    if (block_size <= 0 || block_size > 1024) return cudaErrorInvalidValue;
    load(function, current_gpu());
    *blocks = static_cast<int>(blocks_per_processor(room_of(function, static_cast<size_t>(block_size), shared_bytes)));
    return cudaSuccess;
  });
}
