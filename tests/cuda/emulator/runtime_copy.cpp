#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/cuda/emulator/runtime.h"

using namespace shoal::cuda::emulator;  // NOLINT: definitions of the runtime's functions

namespace {

struct Copy {
  std::byte* to;
  size_t to_pitch;
  const std::byte* from;
  size_t from_pitch;
  size_t width, height;
  bool lies = false;  ///< whether the copy corrupts a byte

  size_t to_bytes() const { return (height - 1) * to_pitch + width; }
  size_t from_bytes() const { return (height - 1) * from_pitch + width; }
};

Copy rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height) {
  return {static_cast<std::byte*>(to), to_pitch, static_cast<const std::byte*>(from), from_pitch, width, height};
}
Copy bytes(void* to, const void* from, size_t size) {
  return rows(to, size, from, size, size, 1);
}

/// Whether a copy between two GPUs uses peer access. All other copies go through the host.
bool is_direct(int from, int to) {
  const std::lock_guard lock(runtime().mutex);
  return runtime().gpus[from].peers.contains(to) || runtime().gpus[to].peers.contains(from);
}
/// Whether SHOAL_EMULATED_LYING_PEERS contains "from>to".
bool pair_lies(int from, int to) {
  const char* value = std::getenv("SHOAL_EMULATED_LYING_PEERS");
  if (value == nullptr || from == to || !is_direct(from, to)) return false;
  return ("," + std::string(value) + ",").find("," + std::to_string(from) + ">" + std::to_string(to) + ",") !=
         std::string::npos;
}

bool is_inside(const Place& place, size_t size) {
  return !place.known || place.allocation.size - place.offset >= size;
}

/// Pinned memory counts as host memory and as GPU memory.
bool kind_fits(cudaMemcpyKind kind, const Place& to, const Place& from) {
  if (kind == cudaMemcpyDefault) return true;
  const bool to_gpu = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_gpu = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return (to_gpu ? to.known : !to.on_gpu()) && (from_gpu ? from.known : !from.on_gpu());
}

/// Checks a copy as CUDA does. The pointers must match `kind`, and the copied bytes must be inside of their
/// allocations.
cudaError_t check_copy(Copy& copy, cudaMemcpyKind kind, bool captured) {
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  if (copy.to_pitch < copy.width || copy.from_pitch < copy.width) return cudaErrorInvalidPitchValue;
  const Place to = find_place(copy.to), from = find_place(copy.from);
  if (copy.to == nullptr || copy.from == nullptr || !kind_fits(kind, to, from)) return cudaErrorInvalidValue;
  if (!is_inside(to, copy.to_bytes()) || !is_inside(from, copy.from_bytes())) return cudaErrorInvalidValue;
  if (captured && (!to.known || !from.known)) return cudaErrorStreamCaptureUnsupported;
  copy.lies = to.on_gpu() && from.on_gpu() && pair_lies(from.allocation.gpu, to.allocation.gpu);
  return cudaSuccess;
}

void run_copy(const Copy& copy) {
  if (copy.width == copy.to_pitch && copy.width == copy.from_pitch) {
    std::memmove(copy.to, copy.from, copy.width * copy.height);
  } else {
    for (size_t row = 0; row < copy.height; ++row) {
      std::memmove(copy.to + row * copy.to_pitch, copy.from + row * copy.from_pitch, copy.width);
    }
  }
  if (copy.lies) copy.to[0] ^= std::byte{0x10};
}

cudaError_t queue_copy(Stream& stream, Copy copy, cudaMemcpyKind kind) {
  const cudaError_t status = check_copy(copy, kind, is_capturing(stream));
  if (status != cudaSuccess || copy.width == 0 || copy.height == 0) return status;
  return submit(stream, {OperationKind::kCopy, [copy](Workers&) { run_copy(copy); }});
}
cudaError_t queue_copy(const char* name, const Copy& copy, cudaMemcpyKind kind, cudaStream_t handle) {
  return with_stream(name, handle, [&](Stream& stream) { return queue_copy(stream, copy, kind); });
}

cudaError_t fill(cudaStream_t handle, void* to, size_t size, int value) {
  Stream* const stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (size == 0) return cudaSuccess;
  const Place place = find_place(to);
  if (!place.known || !is_inside(place, size)) return cudaErrorInvalidValue;
  return submit(*stream, {OperationKind::kFill, [=](Workers&) { std::memset(to, value, size); }});
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  return queue_copy("cudaMemcpyAsync", bytes(to, from, size), kind, stream);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return queue_copy("cudaMemcpy2DAsync", rows(to, to_pitch, from, from_pitch, width, height), kind, stream);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_gpu, const void* from, int from_gpu, size_t size,
                                cudaStream_t stream) {
  if (to_gpu >= gpu_count() || from_gpu >= gpu_count() || to_gpu < 0 || from_gpu < 0) {
    return api("cudaMemcpyPeerAsync", [] { return cudaErrorInvalidDevice; });
  }
  return queue_copy("cudaMemcpyPeerAsync", bytes(to, from, size), cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return api_outside_capture("cudaMemcpy", [&] {
    Stream& stream = default_stream(current_gpu());
    const cudaError_t status = queue_copy(stream, bytes(to, from, size), kind);
    if (status == cudaSuccess && size > 0) stream.synchronize();
    return status;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  return api("cudaMemsetAsync", [&] { return fill(stream, to, size, value); });
}
cudaError_t cudaMemset(void* to, int value, size_t size) {
  return api_outside_capture("cudaMemset", [&] { return fill(nullptr, to, size, value); });
}
