// The op merge_attention. It merges partial results of attention. The weight of a partial result is e^(x - y). x is the
// log-sum-exp of this partial result. y is the log-sum-exp of all partial results together.
#include <algorithm>
#include <cmath>
#include <limits>

#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float at(const Tensor& tensor, const std::byte* row, int64_t i) {
  return *reinterpret_cast<const float*>(row + i * tensor.strides[0]);
}

/// Returns log(sum of e^x) over a row, or -infinity for an empty row.
float log_sum_exp(const Tensor& x, const std::byte* row) {
  float top = kMinusInfinity, sum = 0;
  for (int64_t i = 0; i < x.shape[0]; ++i) top = std::max(top, at(x, row, i));
  if (top == kMinusInfinity) return top;
  for (int64_t i = 0; i < x.shape[0]; ++i) sum += std::exp(at(x, row, i) - top);
  return top + std::log(sum);
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor &parts = *node.src[0], &lse = *node.src[1];
  const int64_t length = node.shape[0];
  for_rows(ctx, node.shape, [&](RowIndex row) {
    auto* to = reinterpret_cast<float*>(row_at(node, row));
    std::fill_n(to, length, 0.0f);
    const float all = log_sum_exp(lse, row_at(lse, {row.i1, row.i2, 0}));
    for (int64_t part = 0; part < parts.shape[3]; ++part) {
      const std::byte* from = row_at(parts, {row.i1, row.i2, part});
      const float own = at(parts, from, length);
      if (own == kMinusInfinity) continue;
      const float weight = std::exp(own - all);
      const auto* values = reinterpret_cast<const float*>(from);
#pragma omp simd
      for (int64_t i = 0; i < length; ++i) to[i] += weight * values[i];
    }
  });
}

bool supports(const Tensor& node) {
  const Tensor &parts = *node.src[0], &lse = *node.src[1];
  return node.dtype == DType::kF32 && node.is_contiguous() && parts.dtype == DType::kF32 && parts.is_row_contiguous() &&
         lse.dtype == DType::kF32;
}

int64_t work(const Tensor& node) {
  return node.src[0]->elements();
}

}  // namespace

const OpKernel kMergeAttentionKernel{run, supports, nullptr, work};

}  // namespace shoal::cpu
