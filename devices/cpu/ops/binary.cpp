// The ops add, sub, mul and div with broadcasting. An operand has either a full row, or one element that is used for
// the whole row. Half-precision types are computed in f32. i32 elements are not converted.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

// The order is the same as in RowKernels::binary.
enum Operation { kPlus, kMinus, kTimes, kOver };

/// The shape to iterate over, and whether each operand has a full row.
struct Walk {
  Shape shape;
  bool a_steps, b_steps;
};

Walk walk_of(const Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const bool alike = same_shape(a, b);
  return {alike ? flat_shape(node, a, b) : node.shape, alike || a.shape[0] == node.shape[0],
          alike || b.shape[0] == node.shape[0]};
}

template <Operation kOperation>
void run_floats(const TeamContext& ctx, Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const Walk walk = walk_of(node);
  const BinaryKernel combine = kernels().rows.binary[kOperation];
  const auto piece = [&](RowIndex row, int64_t begin, int64_t n) {
    float left[kChunk], right[kChunk], scratch[kChunk];
    std::byte* out = row_at(node, row);
    const float* x = load(a, broadcast_row_at(a, row), walk.a_steps ? begin : 0, walk.a_steps ? n : 1, left);
    const float* y = load(b, broadcast_row_at(b, row), walk.b_steps ? begin : 0, walk.b_steps ? n : 1, right);
    float* to = target(node, out, begin, scratch);
    combine(x, walk.a_steps, y, walk.b_steps, to, n);
    store(node, out, begin, n, to);
  };
  for_pieces(ctx, walk.shape, piece, chunk_for(node, a, b));
}

// Computes with unsigned integers, because signed overflow is undefined and unsigned integers wrap around.
template <Operation kOperation>
uint32_t combined(uint32_t a, uint32_t b) {
  if constexpr (kOperation == kPlus) return a + b;
  if constexpr (kOperation == kMinus) return a - b;
  return a * b;
}

const uint32_t* integers(const Tensor& source, const std::byte* row, int64_t begin, int64_t n, uint32_t* scratch) {
  copy_elements(source, row, begin, n, reinterpret_cast<std::byte*>(scratch));
  return scratch;
}

template <Operation kOperation>
void run_integers(const TeamContext& ctx, Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const Walk walk = walk_of(node);
  for_pieces(ctx, walk.shape, [&](RowIndex row, int64_t begin, int64_t n) {
    uint32_t left[kChunk], right[kChunk];
    const uint32_t* x = integers(a, broadcast_row_at(a, row), walk.a_steps ? begin : 0, walk.a_steps ? n : 1, left);
    const uint32_t* y = integers(b, broadcast_row_at(b, row), walk.b_steps ? begin : 0, walk.b_steps ? n : 1, right);
    auto* to = reinterpret_cast<uint32_t*>(row_at(node, row)) + begin;
    for (int64_t i = 0; i < n; ++i) to[i] = combined<kOperation>(x[walk.a_steps ? i : 0], y[walk.b_steps ? i : 0]);
  });
}

template <Operation kOperation>
void run(const TeamContext& ctx, Tensor& node) {
  if constexpr (kOperation != kOver) {
    if (node.dtype == DType::kI32) return run_integers<kOperation>(ctx, node);
  }
  run_floats<kOperation>(ctx, node);
}

bool supports_float(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]) && is_float(node.src[1]);
}

bool supports_float_or_int(const Tensor& node) {
  const bool integers =
      node.dtype == DType::kI32 && node.src[0]->dtype == DType::kI32 && node.src[1]->dtype == DType::kI32;
  return supports_float(node) || (integers && node.is_contiguous());
}

}  // namespace

const OpKernel kAddKernel{run<kPlus>, supports_float_or_int, nullptr, nullptr};
const OpKernel kSubKernel{run<kMinus>, supports_float_or_int, nullptr, nullptr};
const OpKernel kMulKernel{run<kTimes>, supports_float_or_int, nullptr, nullptr};
const OpKernel kDivKernel{run<kOver>, supports_float, nullptr, nullptr};

}  // namespace shoal::cpu
