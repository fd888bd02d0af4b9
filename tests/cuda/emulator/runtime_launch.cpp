#include <utility>

#include "devices/cuda/architectures.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/emulator/shoal_cuda_emulator.h"

namespace shoal::cuda::emulator {
namespace {

constexpr size_t kSharedBytes = 48 * 1024;
constexpr unsigned kMostBlocks = 65535;  // largest size of a grid along y, and along z

bool has_code_for(int gpu) {
  const auto built = built_architectures();
  const int capability = generation(gpu).compute_capability;
  return std::any_of(built.begin(), built.end(), [&](int one) { return runs_on(one, capability); });
}

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

}  // namespace

void launch_kernel(cudaStream_t handle, const LaunchSize& size, const void* function, std::function<void()> kernel) {
  with_stream("cudaLaunchKernel", handle, [&](Stream& stream) {
    if (!has_code_for(stream.gpu())) return cudaErrorNoKernelImageForDevice;
    const size_t most_shared = generation(stream.gpu()).shared_bytes_per_block();
    const cudaError_t status = check_size(size, std::min(allowed_shared_bytes(function), most_shared));
    if (status != cudaSuccess) return status;
    const Room room = room_of(size_t{size.block.x} * size.block.y * size.block.z, size.shared_bytes);
    Kernel launched{size, std::move(kernel), room, stream.gpu()};
    launched.size.early =
        size.early && generation(stream.gpu()).compute_capability >= 90;  // the same condition is in platform.h
    note_launch(launched.size);
    return submit(stream, {OperationKind::kKernel, {}, std::make_shared<const Kernel>(std::move(launched))});
  });
}

}  // namespace shoal::cuda::emulator

using namespace shoal::cuda::emulator;  // NOLINT: definitions of the runtime's functions

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return api("cudaFuncSetAttribute", [&] {
    const bool is_carveout = attribute == cudaFuncAttributePreferredSharedMemoryCarveout;
    if (!is_carveout && attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    const int most = is_carveout ? 100 : static_cast<int>(generation(current_gpu()).shared_bytes_per_block());
    if (value < (is_carveout ? -1 : 0) || value > most) return cudaErrorInvalidValue;
    const std::lock_guard lock(runtime().mutex);
    (is_carveout ? runtime().carveouts : runtime().dynamic_shared)[function] = value;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return api("cudaFuncGetAttributes", [&] {
    if (function == nullptr) return cudaErrorInvalidDeviceFunction;
    const std::lock_guard lock(runtime().mutex);
    const auto allowed = runtime().dynamic_shared.find(function);
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = allowed == runtime().dynamic_shared.end() ? 48 * 1024 : allowed->second;
    const auto carveout = runtime().carveouts.find(function);
    attributes->preferredShmemCarveout = carveout == runtime().carveouts.end() ? -1 : carveout->second;
    return cudaSuccess;
  });
}
