// rms_norm, layer_norm: passes over a row for the sums (in double) and one for the result.
#include <cmath>

#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "devices/cpu/ops/sums.h"

namespace shoal::cpu {
namespace {

/// Mean of f(element) over a row.
template <class F>
double mean_of(const Tensor& x, const std::byte* row, F&& f) {
  float in[kChunk];
  double sum = 0;
  for (int64_t begin = 0; begin < x.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, x.shape[0] - begin);
    sum += sum_of(load(x, row, begin, n, in), n, f);
  }
  return sum / static_cast<double>(x.shape[0]);
}

/// to = (x - shift) * factor.
void write_row(const Tensor& x, const std::byte* row, float shift, float factor, float* to) {
  float in[kChunk];
  for (int64_t begin = 0; begin < x.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, x.shape[0] - begin);
    const float* values = load(x, row, begin, n, in);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[begin + i] = (values[i] - shift) * factor;
  }
}

void run_rms_norm(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const float eps = std::get<NormParams>(node.params).eps;
  for_rows(ctx, node.shape, [&](RowIndex index) {
    const std::byte* row = row_at(x, index);
    const double squares = mean_of(x, row, [](double v) { return v * v; });
    const auto factor = static_cast<float>(1.0 / std::sqrt(squares + eps));
    write_row(x, row, 0, factor, reinterpret_cast<float*>(row_at(node, index)));
  });
}

void run_layer_norm(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const float eps = std::get<NormParams>(node.params).eps;
  for_rows(ctx, node.shape, [&](RowIndex index) {
    const std::byte* row = row_at(x, index);
    const double mean = mean_of(x, row, [](double v) { return v; });
    const double variance = mean_of(x, row, [mean](double v) { return (v - mean) * (v - mean); });
    const auto factor = static_cast<float>(1.0 / std::sqrt(variance + eps));
    write_row(x, row, static_cast<float>(mean), factor, reinterpret_cast<float*>(row_at(node, index)));
  });
}

bool supports(const Tensor& node) {
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]);
}

int64_t work(const Tensor& node) {
  return node.elements() * 3;
}

}  // namespace

const OpKernel kRmsNormKernel{run_rms_norm, supports, nullptr, work};
const OpKernel kLayerNormKernel{run_layer_norm, supports, nullptr, work};

}  // namespace shoal::cpu
