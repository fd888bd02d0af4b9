// mul_mat_tiles in f32, for f32, f16 and bf16 with any strides. The normalised squared error of f32 products must stay
// below 1e-11. This accuracy needs all 24 bits of both operands. On tensor cores, 24 bits would take three bf16 terms
// per operand and six products of terms. Six products are hardly faster than this kernel. f16 and bf16 operands use
// this kernel only if their rows are not contiguous or not aligned.
#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {
namespace {

constexpr int kRows = 64, kColumns = 64, kStep = 16;  // rows and columns of a tile; number of elements of k per step
constexpr int kThreads = 256;                         // 16 x 16 threads, each with 4 x 4 elements of the result
constexpr int kPad = 4;                               // padding that keeps rows aligned to 16 bytes and puts columns in
                                                      // different banks

struct Operand {
  const std::byte* data;
  int64_t along_k, along_rows;  ///< strides along k and along rows
  int64_t rows, k;
};

/// The four elements of a tile [kStep][64] that one thread copies. Their indices are relative to the tile's first
/// element (k, row). Neighbouring lanes copy neighbouring elements of the axis with the smaller stride, so the loads of
/// a warp are contiguous.
struct Share {
  int k[4], row[4];
  __device__ explicit Share(const Operand& from) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      const bool k_first = from.along_k <= from.along_rows;
      k[i] = k_first ? at % kStep : at / kRows;
      row[i] = k_first ? at / kStep : at % kRows;
    }
  }
};

template <class T>
__device__ void load(const Operand& from, const Share& share, int64_t k, int64_t row, float (&values)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at_k = k + share.k[i], at_row = row + share.row[i];
    const bool inside = at_k < from.k && at_row < from.rows;
    const std::byte* address = from.data + at_k * from.along_k + at_row * from.along_rows;
    values[i] = inside ? to_float(load_as<T>(address)) : 0.0f;
  }
}

__device__ void store(const Share& share, const float (&values)[4], float (*tile)[kRows + kPad]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[share.k[i]][share.row[i]] = values[i];
}

/// Each block computes one tile of c. The tile begins at row m and column n of c.
template <class A, class B>
__global__ void __launch_bounds__(kThreads) float_tile(const View a, const View b, const View c) {
  static_assert(kRows == kColumns);
  __shared__ __align__(16) float a_tile[2][kStep][kRows + kPad];
  __shared__ __align__(16) float b_tile[2][kStep][kColumns + kPad];
  let_next_start();
  wait_for_previous();
  const int64_t row_tiles = (c.shape[0] + kRows - 1) / kRows, column_tiles = (c.shape[1] + kColumns - 1) / kColumns;
  const int64_t m = blockIdx.x % row_tiles * kRows, n = blockIdx.x / row_tiles % column_tiles * kColumns;
  const int64_t batch = blockIdx.x / row_tiles / column_tiles, i2 = batch % c.shape[2], i3 = batch / c.shape[2];
  const Operand from_a{row_at(a, 0, i2 / (c.shape[2] / a.shape[2]), i3 / (c.shape[3] / a.shape[3])), a.strides[0],
                       a.strides[1], a.shape[1], a.shape[0]};
  const Operand from_b{row_at(b, 0, i2, i3), b.strides[0], b.strides[1], b.shape[1], a.shape[0]};
  const Share a_share(from_a), b_share(from_b);
  const int x = static_cast<int>(threadIdx.x) % 16 * 4, y = static_cast<int>(threadIdx.x) / 16 * 4;
  float a_next[4], b_next[4], sums[4][4] = {};
  load<A>(from_a, a_share, 0, m, a_next);
  load<B>(from_b, b_share, 0, n, b_next);
  for (int64_t k = 0, stage = 0; k < from_a.k; k += kStep, stage = 1 - stage) {
    store(a_share, a_next, a_tile[stage]);
    store(b_share, b_next, b_tile[stage]);
    __syncthreads();  // one barrier is enough, because threads that are one step ahead write the other buffer
    load<A>(from_a, a_share, k + kStep, m, a_next);
    load<B>(from_b, b_share, k + kStep, n, b_next);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      const float4 av = load_as<float4>(&a_tile[stage][i][x]);
      const float4 bv = load_as<float4>(&b_tile[stage][i][y]);
      const float as[4] = {av.x, av.y, av.z, av.w}, bs[4] = {bv.x, bv.y, bv.z, bv.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int l = 0; l < 4; ++l) sums[j][l] = fmaf(as[l], bs[j], sums[j][l]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (n + y + j >= c.shape[1]) continue;
    auto* to = reinterpret_cast<float*>(row_at(c, n + y + j, i2, i3));
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      if (m + x + l < c.shape[0]) to[m + x + l] = sums[j][l];
    }
  }
}

using Kernel = void (*)(View, View, View);
template <class A>
constexpr Kernel kForB[] = {float_tile<A, float>, float_tile<A, __half>, float_tile<A, __nv_bfloat16>};
constexpr const Kernel* kForA[] = {kForB<float>, kForB<__half>, kForB<__nv_bfloat16>};
static_assert(static_cast<int>(DType::kF32) == 0 && static_cast<int>(DType::kF16) == 1 &&
              static_cast<int>(DType::kBF16) == 2);

}  // namespace

void mul_mat_float_tiles(const LaunchContext& context, Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const int64_t blocks =
      (node.shape[0] + kRows - 1) / kRows * ((node.shape[1] + kColumns - 1) / kColumns) * node.shape[2] * node.shape[3];
  // Quantised matrices use this kernel only if k == 0. In this case, their dtype does not matter.
  const int a_dtype = traits(a.dtype).is_quantized ? 0 : static_cast<int>(a.dtype);
  launch_early(context, kForA[a_dtype][static_cast<int>(b.dtype)], dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
               0, view_of(a), view_of(b), view_of(node));
}

}  // namespace shoal::cuda
