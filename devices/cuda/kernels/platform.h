// Basic functions of the kernels, and the rules for kernel code. nvcc compiles the kernels for GPUs. The host's
// compiler also compiles the kernels against the emulator in tests/cuda/emulator (SHOAL_CUDA_EMULATED). The emulator
// runs the same kernels on the CPU, so that machines without a GPU can test the kernels. So kernels use plain CUDA C++.
// Instead of inline PTX, kernels use the functions of this header and of kernels/mma.h.
//
//   __global__ void add_one(float* x, int n) {
//     const int i = blockIdx.x * blockDim.x + threadIdx.x;
//     if (i < n) x[i] += 1;
//   }
//   launch(context.stream, add_one, dim3(blocks), dim3(256), 0, x, n);
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#ifdef SHOAL_CUDA_EMULATED
#include <shoal_cuda_emulator.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifdef __CUDACC__  // host files include this header only for the types of CUDA's headers

namespace shoal::cuda {

/// Declares shared memory whose size is an argument of the launch. `SHOAL_DYNAMIC_SHARED(float, values);` declares
/// float* values.
#define SHOAL_DYNAMIC_SHARED(type, name)                        \
  extern __shared__ __align__(16) unsigned char shoal_shared[]; \
  type* const name = reinterpret_cast<type*>(shoal_shared)

/// Acquire loads and release stores, which synchronise with all devices and the host.
__device__ inline uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/// Store and load two 64-bit words at an address aligned to 16 bytes. Each word is atomic and visible to all devices,
/// but has no order relative to other accesses. A word that contains both data and a flag needs no order.
__device__ inline void store_pair(void* address, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
}
__device__ inline void load_pair(const void* address, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(address) : "memory");
}
/// A pause between two polls of a flag that another block, another device or the host sets.
__device__ inline void spin_pause() {
  __nanosleep(20);
}
/// Returns the nanoseconds since a fixed time that is the same for all blocks.
__device__ inline uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

/// Returns its argument (32 bits or a pointer) and makes the compiler keep this value in a register. Without kept(), if
/// a value depends on the thread's index, compilers recompute the value at every use.
template <class T>
__device__ inline T kept(T value) {
  static_assert(sizeof(T) == 4 || std::is_pointer_v<T>);
  if constexpr (std::is_pointer_v<T>) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}
/// Like __dp4a, but with unsigned bytes in `a` and signed bytes in `b`.
__device__ inline int dot_unsigned(uint32_t a, int b, int sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  return sum;
}
/// An address in shared memory, stored in one 32-bit register.
class SharedPlace {
 public:
  __device__ explicit SharedPlace(const void* shared)
      : at_(kept(static_cast<uint32_t>(__cvta_generic_to_shared(shared)))) {}
  __device__ SharedPlace operator+(int bytes) const { return SharedPlace(at_ + bytes); }
  __device__ uint32_t address() const { return at_; }

 private:
  __device__ explicit SharedPlace(uint32_t at) : at_(at) {}
  uint32_t at_;
};

/// Starts to copy 16 bytes from global to shared memory without a register. Both addresses are aligned to 16.
__device__ inline void copy_async_16(SharedPlace shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared.address()), "l"(global) : "memory");
}
__device__ inline void copy_async_16(void* shared, const void* global) {
  copy_async_16(SharedPlace(shared), global);
}
/// If `valid`, starts to copy 16 bytes. Otherwise reads nothing and fills the 16 bytes with zeros.
__device__ inline void copy_async_16(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `kPending` groups of this thread's copies are in flight. A following __syncthreads() makes the
/// completed copies visible to other threads.
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// For kernels of launch_early(). Returns when all earlier work of the stream has finished and the stores of this work
/// are visible. Before this call, a thread may read only weights from global memory, because no kernel writes weights.
/// Before this call, a thread may write only shared memory. At least one thread of the grid must call
/// wait_for_previous(), even if the grid has no work.
///
/// Only these waits order kernels. let_next_start() does not order kernels, so kernels call it at their start. Kernel n
/// + 1 waits for the end of kernel n, and kernel n + 2 waits for the end of kernel n + 1. So kernel n + 2 passes its
/// wait only after both earlier kernels have ended. Kernel n + 2 may start while kernel n still runs. But before its
/// wait, kernel n + 2 does not touch memory that kernel n reads or writes: results, records, counters, or memory that a
/// pool or a graph has reused. Only copies write weights. The kernel after a copy and all later kernels start after the
/// end of the copy, so kernels may read weights before the wait. If ranks share a GPU, a kernel that waits for other
/// ranks must not call let_next_start() before its wait for these ranks ends (docs/p2p.md).
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Allows the next kernel, if queued by launch_early(), to start on free multiprocessors.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Prepares a kernel for launches on the current GPU with `shared_bytes` bytes of dynamic shared memory. The kernel's
/// limit of dynamic shared memory never shrinks, because other threads may also launch the kernel. Also requests the
/// largest share of the L1 cache for shared memory. A busy multiprocessor cannot change this share. So without the
/// request, the kernel could not start on a multiprocessor whose blocks run with the largest share. Thread-safe.
void prepare_kernel(const void* kernel, size_t shared_bytes);

/// Number of bytes of dynamic shared memory that every kernel may use without prepare_kernel(). CUDA limits dynamic and
/// static shared memory together to 48 KB for such kernels.
inline constexpr size_t kPlainSharedBytes = 32 * 1024;

enum class Start : bool { kAfterPrevious, kEarly };

template <class... Parameters, class... Arguments>
void launch_at(Start start, cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block,
               size_t shared_bytes, Arguments&&... arguments) {
  if (start == Start::kEarly || shared_bytes > kPlainSharedBytes) {
    prepare_kernel(reinterpret_cast<const void*>(kernel), shared_bytes);
  }
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = start == Start::kEarly ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

/// Queues a kernel. cudaGetLastError() reports launch errors.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Arguments&&... arguments) {
  launch_at(Start::kAfterPrevious, stream, kernel, grid, block, shared_bytes, std::forward<Arguments>(arguments)...);
}
/// Queues a kernel that calls wait_for_previous(). On GPUs of compute capability 9.0 or later, the kernel may start
/// while the previous kernel still runs. These GPUs run code compiled for their own generation (architectures.h). In
/// this code, wait_for_previous() contains the instruction that waits.
template <class Context, class... Parameters, class... Arguments>
void launch_early(const Context& context, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                  Arguments&&... arguments) {
  const bool early = !context.gpu.off.early && context.gpu.compute_capability >= 90;
  const Start start = early ? Start::kEarly : Start::kAfterPrevious;
  launch_at(start, context.stream, kernel, grid, block, shared_bytes, std::forward<Arguments>(arguments)...);
}

}  // namespace shoal::cuda

#endif  // __CUDACC__
#endif
