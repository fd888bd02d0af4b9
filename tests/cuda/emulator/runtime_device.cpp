#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "devices/cuda/architectures.h"
#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {

size_t setting(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

int gpu_count() {
  return static_cast<int>(setting("SHOAL_EMULATED_GPUS", 1));
}

namespace {

/// Returns the numbers of a comma-separated list, such as "90,86".
std::vector<int> numbers(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  std::istringstream list(text == nullptr ? otherwise : text);
  std::vector<int> found;
  for (std::string number; std::getline(list, number, ',');) found.push_back(std::atoi(number.c_str()));
  return found;
}

}  // namespace

const Generation& generation(int gpu) {
  static constexpr Generation kAll[] = {
      {75, 64 << 10, 1024, 16},  {80, 164 << 10, 2048, 32},  {86, 100 << 10, 1536, 16}, {89, 100 << 10, 1536, 24},
      {90, 228 << 10, 2048, 32}, {100, 228 << 10, 2048, 32}, {120, 100 << 10, 1536, 24}};
  const std::vector<int> capabilities = numbers("SHOAL_EMULATED_SM", "90");
  const int wanted = capabilities[std::min(static_cast<size_t>(gpu), capabilities.size() - 1)];
  const auto* const found = std::find_if(std::begin(kAll), std::end(kAll),
                                         [&](const Generation& one) { return one.compute_capability == wanted; });
  if (found != std::end(kAll)) return *found;
  std::fprintf(stderr, "CUDA emulator: SHOAL_EMULATED_SM: sm_%d is not emulated\n", wanted);
  std::abort();
}

}  // namespace shoal::cuda::emulator

std::span<const int> shoal::cuda::built_architectures() {
  static const std::vector<int> built = emulator::numbers("SHOAL_EMULATED_BUILT", "80,86,89,90,120");
  return built;
}

using namespace shoal::cuda::emulator;  // NOLINT: definitions of the runtime's functions

namespace {

constexpr int kVersion = CUDART_VERSION;

bool is_gpu(int gpu) {
  return gpu >= 0 && gpu < gpu_count();
}

/// Name and text of an error that the emulator or a test may return.
std::pair<const char*, const char*> describe(cudaError_t error) {
#define SHOAL_ERROR(error, text) \
  case error:                    \
    return {#error, text};
  switch (error) {
    SHOAL_ERROR(cudaSuccess, "no error")
    SHOAL_ERROR(cudaErrorInvalidValue, "invalid argument")
    SHOAL_ERROR(cudaErrorMemoryAllocation, "out of memory")
    SHOAL_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument")
    SHOAL_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument")
    SHOAL_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected")
    SHOAL_ERROR(cudaErrorInvalidDevice, "invalid device ordinal")
    SHOAL_ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")
    SHOAL_ERROR(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")
    SHOAL_ERROR(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices")
    SHOAL_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle")
    SHOAL_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state")
    SHOAL_ERROR(cudaErrorNotReady, "device not ready")
    SHOAL_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered")
    SHOAL_ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")
    SHOAL_ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled")
    SHOAL_ERROR(cudaErrorLaunchFailure, "unspecified launch failure")
    SHOAL_ERROR(cudaErrorNotSupported, "operation not supported")
    SHOAL_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")
    SHOAL_ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")
    SHOAL_ERROR(cudaErrorStreamCaptureWrongThread, "attempt to terminate a capture sequence from another thread")
    SHOAL_ERROR(cudaErrorGraphExecUpdateFailure, "the graph update was not performed because it included changes")
    SHOAL_ERROR(cudaErrorUnknown, "unknown error")
    default:
      return {"unrecognized error code", "unrecognized error code"};
  }
#undef SHOAL_ERROR
}

/// Sets the properties that the plug-in reads.
void describe_gpu(cudaDeviceProp& gpu, int index) {
  gpu = {};
  const Generation& kind = generation(index);
  std::snprintf(gpu.name, sizeof(gpu.name), "Emulated GPU");
  gpu.major = kind.compute_capability / 10, gpu.minor = kind.compute_capability % 10;
  gpu.multiProcessorCount = static_cast<int>(setting("SHOAL_EMULATED_PROCESSORS", 8));
  gpu.totalGlobalMem = setting("SHOAL_EMULATED_MEMORY", size_t{1} << 30);
  gpu.sharedMemPerBlockOptin = kind.shared_bytes_per_block();
}

cudaError_t attribute_of(int gpu, cudaDeviceAttr attribute, int& value) {
  cudaDeviceProp found;
  describe_gpu(found, gpu);
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      value = static_cast<int>(found.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      value = found.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      value = found.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      value = found.minor;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t can_access(int* can, int gpu, int peer) {
  if (!is_gpu(gpu) || !is_gpu(peer)) return cudaErrorInvalidDevice;
  *can = gpu != peer && setting("SHOAL_EMULATED_PEERS", 1) != 0 ? 1 : 0;
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  return api("cudaGetDeviceCount", [&] {
    *count = gpu_count();
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int gpu) {
  return api("cudaSetDevice", [&] {
    if (!is_gpu(gpu)) return cudaErrorInvalidDevice;
    current_gpu() = gpu;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* gpu) {
  return api("cudaGetDevice", [&] {
    *gpu = current_gpu();
    return gpu_count() == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  return api("cudaSetDeviceFlags", [&] {
    const std::lock_guard lock(runtime().mutex);
    runtime().gpus[current_gpu()].flags = flags;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return api("cudaGetDeviceFlags", [&] {
    const std::lock_guard lock(runtime().mutex);
    *flags = runtime().gpus[current_gpu()].flags;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int gpu) {
  return api("cudaGetDeviceProperties", [&] {
    if (!is_gpu(gpu)) return cudaErrorInvalidDevice;
    describe_gpu(*properties, gpu);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int gpu) {
  return api("cudaDeviceGetAttribute",
             [&] { return is_gpu(gpu) ? attribute_of(gpu, attribute, *value) : cudaErrorInvalidDevice; });
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int gpu) {
  return api("cudaDeviceGetPCIBusId", [&] {
    if (!is_gpu(gpu)) return cudaErrorInvalidDevice;
    std::snprintf(id, static_cast<size_t>(size), "0000:%02X:00.0", gpu + 1);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return api_outside_capture("cudaDeviceSynchronize", [&] {
    synchronize_gpu(current_gpu());
    trim_pool(current_gpu());
    return cudaSuccess;
  });
}
cudaError_t cudaDriverGetVersion(int* version) {
  return api("cudaDriverGetVersion", [&] {
    *version = gpu_count() == 0 ? 0 : kVersion;
    return cudaSuccess;
  });
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return api("cudaRuntimeGetVersion", [&] {
    *version = kVersion;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int peer) {
  return api("cudaDeviceCanAccessPeer", [&] { return can_access(can, gpu, peer); });
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  return api("cudaDeviceEnablePeerAccess", [&] {
    int can = 0;
    const cudaError_t status = can_access(&can, current_gpu(), peer);
    if (status != cudaSuccess) return status;
    if (can == 0) return cudaErrorPeerAccessUnsupported;
    const std::lock_guard lock(runtime().mutex);
    const bool is_new = runtime().gpus[current_gpu()].peers.insert(peer).second;
    return is_new ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
  });
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return api("cudaDeviceDisablePeerAccess", [&] {
    const std::lock_guard lock(runtime().mutex);
    return runtime().gpus[current_gpu()].peers.erase(peer) == 0 ? cudaErrorPeerAccessNotEnabled : cudaSuccess;
  });
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error(), cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error();
}
const char* cudaGetErrorName(cudaError_t error) {
  return describe(error).first;
}
const char* cudaGetErrorString(cudaError_t error) {
  return describe(error).second;
}
