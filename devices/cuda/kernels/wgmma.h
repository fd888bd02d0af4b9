// Matrix products of a warpgroup (128 threads, beginning at a multiple of 128) on tensor cores of compute capability
// 9.0:
//
//   wgmma_f16, wgmma_bf16: d[64 x N] += a[64 x 16] b[16 x N], N = 2 * kSums, operands in shared memory
//
// The instructions run asynchronously. Until wgmma_wait() has waited for the group of a wgmma, the sums of this wgmma
// are undefined, and its operands must not change. All threads of the warpgroup call each function here together, in
// this order:
//
//   fence_async();                   by each thread that wrote operands, before the barrier after the writes
//   wgmma_fence();                   before the first wgmma of a group
//   wgmma_f16(sums, a, b); ...       several wgmmas may add to the same sums
//   wgmma_commit();                  ends the group
//   wgmma_wait<1>();                 waits until all groups before the latest group are done (only rows of this warp)
//   sync_warpgroup();                before operands of these groups are written again
//
// Warp w of the warpgroup holds rows 16 w .. 16 w + 15 of d. With g = lane / 4 and t = lane % 4:
//   d[4 j], d[4 j + 1] = d(16 w + g, 8 j + 2 t .. + 1)   d[4 j + 2], d[4 j + 3] = d(16 w + g + 8, 8 j + 2 t .. + 1)
//
// Operands are passed as descriptors (operand_descriptor()). Both operands are stored as rows along k: rows of `a`, or
// columns of `b`.
#pragma once

#include "devices/cuda/kernels/platform.h"

namespace shoal::cuda {

/// Layouts of operands. Rows are divided into chunks of 16 bytes (eight elements of k). Eight rows form a group; groups
/// of rows are `stride` bytes apart.
///   kNone       Chunk c of all eight rows is 128 contiguous bytes; chunk c + 1 is `leading` bytes further.
///   k32 .. k128 Rows of 32, 64 or 128 bytes are contiguous. In row r of the group, chunk c is stored at position c ^ r
///               (k64: c ^ r / 2, k32: c ^ r / 4). More exactly, bits 7 .. 9 of an address are xored into bits 4 .. 6
///               (k64: two of the bits, k32: one bit). So groups begin at multiples of 1024 (512, 256) bytes of shared
///               memory. If an operand is a part of longer rows, its address is the address of that part in row 0.
///               `leading` is not used.
enum class Swizzle : uint8_t { kNone = 0, k128 = 1, k64 = 2, k32 = 3 };

/// Returns the matrix descriptor of the PTX manual ("Asynchronous warpgroup level matrix instructions"). Bits 0 .. 13
/// are the address in shared memory, bits 16 .. 29 the leading byte offset, and bits 32 .. 45 the stride byte offset,
/// all in units of 16 bytes. Bits 49 .. 51 are the base offset (0 if groups are aligned as described above). Bits 62 ..
/// 63 are the swizzling mode.
__host__ __device__ constexpr uint64_t operand_descriptor(uint32_t address, uint32_t leading, uint32_t stride,
                                                          Swizzle swizzle) {
  constexpr uint32_t kField = 0x3fff;
  return uint64_t{address / 16 & kField} | uint64_t{leading / 16 & kField} << 16 |
         uint64_t{stride / 16 & kField} << 32 | static_cast<uint64_t>(swizzle) << 62;
}
/// Returns the descriptor of the operand that begins `bytes` bytes after another operand. `bytes` is a multiple of 16.
__host__ __device__ constexpr uint64_t descriptor_at(uint64_t descriptor, uint32_t bytes) {
  return descriptor + bytes / 16;
}

}  // namespace shoal::cuda

#ifdef SHOAL_CUDA_EMULATED
#include <shoal_cuda_emulator_wgmma.h>
#elif defined(__CUDACC__)

namespace shoal::cuda {

/// Converts a pointer to the shared-memory address that descriptors use.
__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// For targets other than sm_90a, kernels are empty. So the code below never runs on these targets, but the code must
// compile.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SHOAL_WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
#define SHOAL_WGMMA_ASM(...)
#endif

/// Makes this thread's writes to shared memory visible to wgmma. These writes include completed copies of
/// copy_async_16().
__device__ inline void fence_async() {
  SHOAL_WGMMA_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
/// A barrier of the warpgroup. All warps read all operands. So no warp may overwrite an operand before every warp has
/// waited for the wgmmas that read the operand.
__device__ inline void sync_warpgroup() {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
}
__device__ inline void wgmma_fence() {
  SHOAL_WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  SHOAL_WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  SHOAL_WGMMA_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Operands of the asm statement, "+f"(d[i]), ..., and their placeholders "%i, ...", for 8, 64 and 128 sums.
#define SHOAL_SUMS_8(i)                                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define SHOAL_SUMS_64(i)                                                                                  \
  SHOAL_SUMS_8(i), SHOAL_SUMS_8(i + 8), SHOAL_SUMS_8(i + 16), SHOAL_SUMS_8(i + 24), SHOAL_SUMS_8(i + 32), \
      SHOAL_SUMS_8(i + 40), SHOAL_SUMS_8(i + 48), SHOAL_SUMS_8(i + 56)
#define SHOAL_PLACES_64                                                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SHOAL_PLACES_128                                                                                             \
  SHOAL_PLACES_64                                                                                                    \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
  "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, " \
  "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
  "%125, %126, %127"

// d += a b without negation or transposition. The last arguments, "p, 1, 1, 0, 0", select this operation.
#define SHOAL_WGMMA(name, type)                                                                                      \
  __device__ inline void name(float(&d)[64], uint64_t a, uint64_t b) {                                               \
    SHOAL_WGMMA_ASM("{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
                    " {" SHOAL_PLACES_64 "}, %64, %65, p, 1, 1, 0, 0;}"                                              \
                    : SHOAL_SUMS_64(0)                                                                               \
                    : "l"(a), "l"(b));                                                                               \
  }                                                                                                                  \
  __device__ inline void name(float(&d)[128], uint64_t a, uint64_t b) {                                              \
    SHOAL_WGMMA_ASM("{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type \
                    " {" SHOAL_PLACES_128 "}, %128, %129, p, 1, 1, 0, 0;}"                                           \
                    : SHOAL_SUMS_64(0), SHOAL_SUMS_64(64)                                                            \
                    : "l"(a), "l"(b));                                                                               \
  }
SHOAL_WGMMA(wgmma_f16, "f16")
SHOAL_WGMMA(wgmma_bf16, "bf16")
#undef SHOAL_WGMMA
#undef SHOAL_PLACES_128
#undef SHOAL_PLACES_64
#undef SHOAL_SUMS_64
#undef SHOAL_SUMS_8
#undef SHOAL_WGMMA_ASM

}  // namespace shoal::cuda
#endif
