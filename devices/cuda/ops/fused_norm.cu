// Fuses rms_norm with the preceding addition and the following multiplication. Each thread holds the first quads (four
// elements each) of its row in registers. If the row is longer, the thread reads the remaining quads a second time.
// Without an addition, the thread reads these quads from the operand. With an addition, the thread has stored the sums
// in y, and reads these quads from y. A thread reads and writes the same positions in all tensors, so results may
// overwrite operands.
#include "devices/cuda/ops/fused.h"

#include "devices/cuda/kernels/quantized_column.h"
#include "devices/cuda/ops/float_rows.h"

namespace shoal::cuda {
namespace {

constexpr int kHeldWeights = 2;  ///< number of quads of weights that a thread holds; enough for the rows of a decode
                                 ///< step

struct Operands {
  const std::byte *a, *b;
  NormWeight weight;
  std::byte *y, *z;
  ColumnRecord record;  ///< 8-bit copy of z (column_record.h); requires that z has one row with at most kHeldQuads
                        ///< quads per thread
};

template <bool kSum, bool kWarpRows>
__global__ void __launch_bounds__(1024) add_rms_norm(Operands operands, int64_t length, int64_t rows, float eps) {
  let_next_start();
  const RowTeam<kWarpRows> team;
  if (team.row >= rows) return;
  const int64_t offset = team.row * length * static_cast<int64_t>(sizeof(float));
  const auto row_of = [&](const std::byte* data) { return FloatRow<float>(data, sizeof(float), length); };
  const FloatRow<float> a = row_of(operands.a + offset), weight = row_of(operands.weight.data);
  auto* const y = reinterpret_cast<float*>(operands.y + offset);
  auto* const z = reinterpret_cast<float*>(operands.z + offset);
  const int64_t first = kQuad * team.thread, step = kQuad * static_cast<int64_t>(team.threads);
  const int64_t rest = first + kHeldQuads * step;

  const auto load_sum = [&](int64_t at, float(&values)[kQuad]) {
    a.load(at, values);
    if constexpr (kSum) {
      float added[kQuad];
      row_of(operands.b + offset).load(at, added);
#pragma unroll
      for (int i = 0; i < kQuad; ++i) values[i] += added[i];
    }
  };
  if (!operands.weight.is_constant) wait_for_previous();
  float weights[kHeldWeights][kQuad];
#pragma unroll
  for (int i = 0; i < kHeldWeights; ++i) weight.load(first + i * step, weights[i]);
  wait_for_previous();
  float held[kHeldQuads][kQuad];
#pragma unroll
  for (int i = 0; i < kHeldQuads; ++i) load_sum(first + i * step, held[i]);
  SquareSums<kWarpRows> squares;
#pragma unroll
  for (int i = 0; i < kHeldQuads; ++i) squares.add(i, held[i]);
  for (int64_t at = rest; at < length; at += step) {
    float values[kQuad];
    load_sum(at, values);
    squares.add(0, values);
    if constexpr (kSum) store_quad(y, at, length, values);
  }
  const float factor = 1.0f / sqrtf(squares.total(length) / static_cast<float>(length) + eps);

  const auto store = [&](int64_t at, const float(&values)[kQuad], const float(&by)[kQuad], float(&result)[kQuad]) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) result[i] = values[i] * factor * by[i];
    store_quad(z, at, length, result);
  };
  const bool recorded = operands.record.two || operands.record.four;
#pragma unroll
  for (int i = 0; i < kHeldQuads; ++i) {
    if (i * step >= length) break;
    if constexpr (kSum) store_quad(y, first + i * step, length, held[i]);
    float by[kQuad], result[kQuad];
    if (i >= kHeldWeights) weight.load(first + i * step, by);
    store(first + i * step, held[i], i < kHeldWeights ? weights[i % kHeldWeights] : by, result);
    if (recorded) record_part(operands.record, first + i * step, length, result);
  }
  const FloatRow<float> again = kSum ? row_of(operands.y + offset) : a;
  for (int64_t at = rest; at < length; at += step) {
    float values[kQuad], by[kQuad], result[kQuad];
    again.load(at, values);
    weight.load(at, by);
    store(at, values, by, result);
  }
}

template <bool kSum>
void queue(const LaunchContext& context, const Operands& operands, const View& shape, float eps) {
  const int64_t rows = shape.shape[1] * shape.shape[2] * shape.shape[3];
  const RowGrid grid = row_grid(shape.shape[0], rows);
  launch_early(context, grid.warp_rows ? add_rms_norm<kSum, true> : add_rms_norm<kSum, false>, grid.grid, grid.block, 0,
               operands, shape.shape[0], rows, eps);
}

bool is_dense_f32(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 && tensor.is_contiguous() && tensor.strides[0] == sizeof(float);
}

}  // namespace

void launch_rms_norm_mul(const LaunchContext& context, const View& x, const NormWeight& weight, View z, float eps) {
  queue<false>(context, Operands{x.data, nullptr, weight, nullptr, z.data, context.record(context.writes)}, z, eps);
}

void launch_add_rms_norm(const LaunchContext& context, const View& a, const View& b, View y, const NormWeight& weight,
                         View z, float eps) {
  queue<true>(context, Operands{a.data, b.data, weight, y.data, z.data, context.record(context.writes)}, z, eps);
}

bool can_fuse_rms_norm(const Tensor& a, const Tensor* b, const Tensor* y, const Tensor& weight, const Tensor& z) {
  const auto fits = [&](const Tensor* tensor) { return !tensor || (is_dense_f32(*tensor) && same_shape(*tensor, z)); };
  return (b == nullptr) == (y == nullptr) && fits(&a) && fits(b) && fits(y) && fits(&z) && is_dense_f32(weight) &&
         weight.shape == Shape{z.shape[0], 1, 1, 1} && !z.empty() && rows_fit(z);
}

bool rms_norm_records(const Tensor& z) {
  const RowGrid grid = row_grid(z.shape[0], 1);
  const int64_t threads = grid.warp_rows ? kWarp : grid.block.x;
  return z.rows() == 1 && z.shape[0] <= kHeldQuads * kQuad * threads;
}

}  // namespace shoal::cuda
