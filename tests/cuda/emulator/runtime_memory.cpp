#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/cuda/emulator/runtime.h"

namespace shoal::cuda::emulator {

Place find_place(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  auto found = all.memory.upper_bound(at);
  if (found == all.memory.begin()) return {};
  --found;
  if (at - found->first >= found->second.size) return {};
  return {true, found->second, at - found->first};
}

size_t allocated_bytes(const void* address, size_t size) {
  struct Known {
    uintptr_t begin = 0, end = 0;
    uint64_t freed = 0;
  };
  constinit static thread_local Known known;
  const auto at = reinterpret_cast<uintptr_t>(address);
  const uint64_t freed = runtime().freed;
  if (known.freed != freed || at < known.begin || at >= known.end) {
    const Place place = find_place(address);
    if (!place.known) return 0;
    known = {at - place.offset, at - place.offset + place.allocation.size, freed};
  }
  return std::min<size_t>(size, known.end - at);
}

void trim_pool(int gpu, std::optional<size_t> kept) {
  const std::lock_guard lock(runtime().mutex);
  Pool& pool = runtime().gpus[gpu].pool;
  pool.reserved = std::min(pool.reserved, std::max(pool.used, kept.value_or(pool.threshold)));
}

}  // namespace shoal::cuda::emulator

using namespace shoal::cuda::emulator;  // NOLINT: definitions of the runtime's functions

namespace {

constexpr size_t kAlignment = 256;

size_t gpu_memory() {
  return setting("SHOAL_EMULATED_MEMORY", size_t{1} << 30);
}

/// New GPU memory is filled with NaN, so tests detect reads of uninitialized memory. Sizes are exact, so the address
/// sanitizer detects accesses beyond the end.
cudaError_t allocate(void** address, size_t size, MemoryKind kind) {
  if (address == nullptr) return cudaErrorInvalidValue;
  if (current_gpu() >= gpu_count()) return cudaErrorNoDevice;
  *address = nullptr;
  if (size == 0) return cudaSuccess;
  Runtime& all = runtime();
  const bool on_gpu = kind == MemoryKind::kDevice || kind == MemoryKind::kPool;
  const std::lock_guard lock(all.mutex);
  Gpu& gpu = all.gpus[current_gpu()];
  if (on_gpu && (size > gpu_memory() || gpu.used > gpu_memory() - size)) return cudaErrorMemoryAllocation;
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, size) != 0) return cudaErrorMemoryAllocation;
  std::memset(memory, 0xFF, size);
  if (on_gpu) gpu.used += size;
  if (kind == MemoryKind::kPool) {
    gpu.pool.used += size;
    gpu.pool.reserved = std::max(gpu.pool.reserved, gpu.pool.used);
  }
  all.memory[reinterpret_cast<uintptr_t>(memory)] = {size, current_gpu(), kind};
  *address = memory;
  return cudaSuccess;
}

/// Frees the allocation that begins at `address`.
cudaError_t release(void* address) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  const auto found = all.memory.find(reinterpret_cast<uintptr_t>(address));
  if (found == all.memory.end()) return cudaErrorInvalidValue;
  const Allocation allocation = found->second;
  if (allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kPool) {
    all.gpus[allocation.gpu].used -= allocation.size;
    if (allocation.kind == MemoryKind::kPool) all.gpus[allocation.gpu].pool.used -= allocation.size;
  }
  all.memory.erase(found);
  ++all.freed;
  std::free(address);
  return cudaSuccess;
}

bool begins_allocation(const void* address, MemoryKind kind) {
  const Place place = find_place(address);
  return place.known && place.offset == 0 && place.allocation.kind == kind;
}

void synchronize_all() {
  for (int gpu = 0; gpu < gpu_count(); ++gpu) synchronize_gpu(gpu);
}

}  // namespace

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return api("cudaMemGetInfo", [&] {
    if (current_gpu() >= gpu_count()) return cudaErrorNoDevice;
    const std::lock_guard lock(runtime().mutex);
    *total = gpu_memory();
    const Gpu& gpu = runtime().gpus[current_gpu()];
    *free = *total - std::min(*total, gpu.used - gpu.pool.used + gpu.pool.reserved);
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** address, size_t size) {
  return api_outside_capture("cudaMalloc", [&] { return allocate(address, size, MemoryKind::kDevice); });
}
cudaError_t cudaFree(void* address) {
  return api_outside_capture("cudaFree", [&] {
    if (address == nullptr) return cudaSuccess;
    const Place place = find_place(address);
    if (!place.on_gpu() || place.offset != 0) return cudaErrorInvalidValue;
    synchronize_gpu(place.allocation.gpu);
    return release(address);
  });
}

// Stream-ordered memory is allocated immediately. It is freed when the stream reaches cudaFreeAsync().
cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t handle) {
  return with_stream("cudaMallocAsync", handle, [&](Stream& stream) {
    if (is_capturing(stream)) return cudaErrorStreamCaptureUnsupported;
    const cudaError_t status = allocate(address, size, MemoryKind::kPool);
    if (status != cudaErrorMemoryAllocation) return status;
    stream.synchronize();  // completes the earlier frees of the stream
    return allocate(address, size, MemoryKind::kPool);
  });
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  return with_stream("cudaFreeAsync", handle, [&](Stream& stream) {
    if (is_capturing(stream)) return cudaErrorStreamCaptureUnsupported;
    if (address == nullptr) return cudaSuccess;
    if (!begins_allocation(address, MemoryKind::kPool)) return cudaErrorInvalidValue;
    stream.push({OperationKind::kFree, [address](Workers&) { release(address); }});
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  return api_outside_capture("cudaHostAlloc", [&] { return allocate(address, size, MemoryKind::kHost); });
}
cudaError_t cudaFreeHost(void* address) {
  return api_outside_capture("cudaFreeHost", [&] {
    if (address == nullptr) return cudaSuccess;
    if (!begins_allocation(address, MemoryKind::kHost)) return cudaErrorInvalidValue;
    synchronize_all();
    return release(address);
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return api("cudaPointerGetAttributes", [&] {
    const Place place = find_place(address);
    *attributes = {};
    attributes->type = place.on_gpu()   ? cudaMemoryTypeDevice
                       : place.pinned() ? cudaMemoryTypeHost
                                        : cudaMemoryTypeUnregistered;
    return cudaSuccess;
  });
}

// Each GPU has one pool. The handle of the pool is the GPU's number plus one.
static int gpu_of(cudaMemPool_t pool) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(pool)) - 1;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int gpu) {
  return api("cudaDeviceGetDefaultMemPool", [&] {
    if (gpu < 0 || gpu >= gpu_count()) return cudaErrorInvalidDevice;
    *pool = reinterpret_cast<cudaMemPool_t>(static_cast<uintptr_t>(gpu) + 1);
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return api("cudaMemPoolSetAttribute", [&] {
    if (handle == nullptr || attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
    const std::lock_guard lock(runtime().mutex);
    runtime().gpus[gpu_of(handle)].pool.threshold = *static_cast<const uint64_t*>(value);
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return api("cudaMemPoolGetAttribute", [&] {
    const bool asks_reserved = attribute == cudaMemPoolAttrReservedMemCurrent;
    if (!asks_reserved && attribute != cudaMemPoolAttrUsedMemCurrent) return cudaErrorInvalidValue;
    const std::lock_guard lock(runtime().mutex);
    const Pool& pool = runtime().gpus[gpu_of(handle)].pool;
    *static_cast<uint64_t*>(value) = asks_reserved ? pool.reserved : pool.used;
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, size_t count) {
  return api("cudaMemPoolSetAccess", [&] {
    if (pool == nullptr) return cudaErrorInvalidValue;
    const std::lock_guard lock(runtime().mutex);
    std::set<int>& users = runtime().gpus[gpu_of(pool)].pool.users;
    for (const cudaMemAccessDesc* one = access; one != access + count; ++one) {
      if (one->location.type != cudaMemLocationTypeDevice) return cudaErrorInvalidValue;
      one->flags == cudaMemAccessFlagsProtNone ? void(users.erase(one->location.id))
                                               : void(users.insert(one->location.id));
    }
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool, cudaMemLocation* location) {
  return api("cudaMemPoolGetAccess", [&] {
    if (pool == nullptr || location->type != cudaMemLocationTypeDevice) return cudaErrorInvalidValue;
    const std::lock_guard lock(runtime().mutex);
    const bool may = location->id == gpu_of(pool) || runtime().gpus[gpu_of(pool)].pool.users.contains(location->id);
    *flags = may ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone;
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t kept) {
  return api("cudaMemPoolTrimTo", [&] {
    if (handle == nullptr) return cudaErrorInvalidValue;
    trim_pool(gpu_of(handle), kept);
    return cudaSuccess;
  });
}
