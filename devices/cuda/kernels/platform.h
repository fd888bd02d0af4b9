// The CUDA that kernels are written in: compiled by nvcc for GPUs, and by the host's compiler against the emulator in
// tests/cuda/emulator (SHOAL_CUDA_EMULATED), which runs the same kernels on the CPU so that they are tested on machines
// without a GPU. Kernels therefore use plain CUDA C++ and what this page and kernels/mma.h offer in place of inline
// PTX.
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

#ifdef __CUDACC__  // files for the host's compiler may take types from here and headers that include this

namespace shoal::cuda {

/// Shared memory whose size the launch gives: `SHOAL_DYNAMIC_SHARED(float, values);` declares float* values.
#define SHOAL_DYNAMIC_SHARED(type, name)                        \
  extern __shared__ __align__(16) unsigned char shoal_shared[]; \
  type* const name = reinterpret_cast<type*>(shoal_shared)

/// Loads and stores that order what comes after or before them, seen by all devices and the host.
__device__ inline uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void store_release(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/// Two 64-bit words to or from a place aligned to 16, each word in one piece, in no order with anything else; seen by
/// all devices. A word that carries data and a flag together needs no other order.
__device__ inline void store_pair(void* address, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
}
__device__ inline void load_pair(const void* address, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(address) : "memory");
}
/// Between two looks at a flag that another block, device or the host sets.
__device__ inline void spin_pause() {
  __nanosleep(20);
}
/// Nanoseconds since some fixed time, the same for all blocks.
__device__ inline uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

/// The same value of 32 bits, or pointer, which stays in a register from here on: left alone, compilers compute what
/// depends on the thread's number again wherever it is used.
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
/// __dp4a of bytes without and bytes with a sign.
__device__ inline int dot_unsigned(uint32_t a, int b, int sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  return sum;
}
/// A place in shared memory, in one register.
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

/// 16 bytes from global to shared memory without a register; both aligned to 16.
__device__ inline void copy_async_16(SharedPlace shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared.address()), "l"(global) : "memory");
}
__device__ inline void copy_async_16(void* shared, const void* global) {
  copy_async_16(SharedPlace(shared), global);
}
/// The same, zeros instead when !valid (nothing is read then).
__device__ inline void copy_async_16(void* shared, const void* global, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ inline void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `kPending` of this thread's groups are on their way; __syncthreads() shows them to others.
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// In a kernel of launch_early(): returns when everything queued before it has ended and its stores are seen. Before
/// that a thread reads only weights, which no kernel writes, and writes only shared memory. At least one thread of the
/// grid calls it, even if there is nothing to do.
///
/// Order comes from the waits alone; let_next_start() adds none, so kernels call it first. Kernel n + 1 waits for the
/// end of kernel n, so it ends after n, and kernel n + 2, which waits for the end of n + 1, comes after both. Kernel
/// n + 2 may start while n runs, but before its wait it touches nothing that n reads or writes: results, records,
/// counters, or memory that a pool or a graph has reused. Copies write weights; the kernel behind a copy starts after
/// it, and so do the kernels behind that one. A kernel that waits for other ranks lets the next one start later if
/// ranks share a GPU (docs/p2p.md).
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// From here on the next kernel may start where this one leaves room, if it is one of launch_early().
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Prepares a kernel for launches on the current GPU, once for each: with this many bytes of dynamic shared memory,
/// never fewer than before, as other threads may launch it as well; and beside blocks that use all the shared memory of
/// a multiprocessor, which is not divided anew until it is idle. Thread-safe.
void prepare_kernel(const void* kernel, size_t shared_bytes);

/// Every kernel may have this much dynamic shared memory: 48 KB with its static memory.
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

/// Queues a kernel. Errors of the launch stay for cudaGetLastError().
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            Arguments&&... arguments) {
  launch_at(Start::kAfterPrevious, stream, kernel, grid, block, shared_bytes, std::forward<Arguments>(arguments)...);
}
/// The same for a kernel that calls wait_for_previous(), by a LaunchContext: where the GPU can, it starts while the one
/// before it still runs. A GPU from 9.0 on runs code of its own generation (architectures.h), which waits.
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
