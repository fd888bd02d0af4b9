// Products of f32, f16 and bf16 weights for decoding. Each load reads 16 bytes, and several loads per row are in
// flight. Sums are computed in f32.
#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/ops/mul_mat_vec_job.h"

namespace shoal::cuda {
namespace {

template <class T, int kRows, int kColumns>
__global__ void __launch_bounds__(kVecThreads, vec_blocks(kColumns, false)) float_vec(Product p) {
  constexpr int kElements = 16 / sizeof(T);
  constexpr int kUnroll = 2;
  const WarpPlace<kRows> at(p);
  const Job job = job_of(p, at.job, kColumns);
  if (job.count == 0) return;
  if (job.matrix < 0) return store_zeros(p, at, job);

  const int vectors = p.k / kElements, stride = kWarp * p.split;
  const uint4* rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) rows[r] = reinterpret_cast<const uint4*>(at.row_of(p, job.matrix, r));
  uint32_t x[kColumns];
  find_columns(p, at.job, job, at.lane, x);
  const auto* const x_vectors = reinterpret_cast<const float4*>(p.x);
  float sums[kRows * kColumns] = {};
  for (int first = at.lane + kWarp * at.part; first < vectors; first += stride * kUnroll) {
    uint4 bits[kUnroll][kRows];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int v = first + u * stride;
#pragma unroll
      for (int r = 0; r < kRows; ++r) bits[u][r] = v < vectors ? __ldg(rows[r] + v) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int v = first + u * stride;
      if (v >= vectors) break;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (c == kColumns / 2 && job.count <= c) break;
        float values[kElements];
#pragma unroll
        for (int i = 0; i < kElements / 4; ++i) {
          const float4 four = __ldg(x_vectors + x[c] + v * (kElements / 4) + i);
          values[4 * i] = four.x, values[4 * i + 1] = four.y, values[4 * i + 2] = four.z, values[4 * i + 3] = four.w;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float weights[kElements];
          to_floats<T>(bits[u][r], weights);
#pragma unroll
          for (int i = 0; i < kElements; ++i) {
            sums[r * kColumns + c] = fmaf(weights[i], values[i], sums[r * kColumns + c]);
          }
        }
      }
    }
  }
  finish<kRows, kColumns>(p, at, job, sums);
}

template <class T, int kRows, int kColumns>
constexpr VecKernel float_kernel() {
  return {float_vec<T, kRows, kColumns>, kRows, kColumns, 0};
}

template <class T>
constexpr VecKernels float_kernels() {
  return {float_kernel<T, 2, 2>(), float_kernel<T, 2, 8>()};
}

}  // namespace

const VecKernels kVecF32 = float_kernels<float>();
const VecKernels kVecF16 = float_kernels<__half>();
const VecKernels kVecBF16 = float_kernels<__nv_bfloat16>();

}  // namespace shoal::cuda
