// Matrix products of a warp on tensor cores (sm_80 and newer), and loads of their operands from shared memory. All 32
// lanes take part in each call. Lane L holds parts of the matrices. In the following, g = L / 4 and t = L % 4. A
// register holds a pair of elements, the first in the low bits:
//
//   mma_f16, mma_bf16: d[16 x 8] += a[16 x 16] b[16 x 8], with two elements per register of a and b
//     a[0] = a(g, 2t..2t+1)   a[1] = a(g + 8, 2t..2t+1)   a[2] = a(g, 2t+8..2t+9)   a[3] = a(g + 8, 2t+8..2t+9)
//     b[0] = b(2t..2t+1, g)   b[1] = b(2t+8..2t+9, g)
//     d[0..1] = d(g, 2t..2t+1)   d[2..3] = d(g + 8, 2t..2t+1)
//   load_matrix_x4: four 8 x 8 matrices of 16-bit elements. Lane L passes the address of row L % 8 of matrix L / 8.
//     The row is 16 bytes of shared memory, aligned to 16. r[i] = matrix i (g, 2t..2t+1), or with _trans (2t..2t+1, g).
//
// The function and the order of the four 8 x 8 matrices depend on the operand:
// - `a`, stored as rows of 16 elements: load_matrix_x4; top left, bottom left, top right, bottom right.
// - Two tiles of `b`, stored as columns of 16 contiguous elements: load_matrix_x4; elements 0-7 and 8-15 of the columns
//   of the first tile, then elements 0-7 and 8-15 of the columns of the second tile.
// - Two tiles of `b`, stored as rows: load_matrix_x4_trans; rows 0-7 and 8-15 of the first tile, then rows 0-7 and 8-15
//   of the second tile.
#pragma once

#include "devices/cuda/kernels/platform.h"

#ifdef SHOAL_CUDA_EMULATED
#include <shoal_cuda_emulator_mma.h>
#else

namespace shoal::cuda {

__device__ inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void load_matrix_x4(uint32_t (&r)[4], const void* shared_row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

__device__ inline void load_matrix_x4_trans(uint32_t (&r)[4], const void* shared_row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

}  // namespace shoal::cuda
#endif
