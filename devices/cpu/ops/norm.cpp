// The ops rms_norm and layer_norm. The first passes over a row compute sums in double. The last pass computes the
// result.
#include <cmath>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// Returns the mean over a row. sum(values, n) returns the sum over n consecutive elements of the row.
template <class F>
double mean_of(const Tensor& x, const std::byte* row, F&& sum) {
  float in[kChunk];
  double total = 0;
  for (int64_t begin = 0; begin < x.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, x.shape[0] - begin);
    total += sum(load(x, row, begin, n, in), n);
  }
  return total / static_cast<double>(x.shape[0]);
}

double mean_square(const Tensor& x, const std::byte* row, double shift) {
  return mean_of(x, row, [=](const float* v, int64_t n) { return kernels().rows.sum_squares(v, shift, n); });
}

/// Computes to[i] = (x[i] - shift) * factor for a row x. `to` is the row of the result.
void write_row(const Tensor& x, const std::byte* row, float shift, float factor, const Tensor& node, std::byte* to) {
  float in[kChunk], out[kChunk];
  const int64_t chunk = is_direct(x) && node.dtype == DType::kF32 ? x.shape[0] : kChunk;
  for (int64_t begin = 0; begin < x.shape[0]; begin += chunk) {
    const int64_t n = std::min(chunk, x.shape[0] - begin);
    float* const values = target(node, to, begin, out);
    kernels().rows.normalize(load(x, row, begin, n, in), shift, factor, values, n);
    store(node, to, begin, n, values);
  }
}

void run_rms_norm(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const float eps = std::get<NormParams>(node.params).eps;
  for_rows(ctx, node.shape, [&](RowIndex index) {
    const std::byte* row = row_at(x, index);
    const double squares = mean_square(x, row, 0);
    const auto factor = static_cast<float>(1.0 / std::sqrt(squares + eps));
    write_row(x, row, 0, factor, node, row_at(node, index));
  });
}

void run_layer_norm(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const float eps = std::get<NormParams>(node.params).eps;
  for_rows(ctx, node.shape, [&](RowIndex index) {
    const std::byte* row = row_at(x, index);
    const double mean = mean_of(x, row, kernels().rows.sum);
    const double variance = mean_square(x, row, mean);
    const auto factor = static_cast<float>(1.0 / std::sqrt(variance + eps));
    write_row(x, row, static_cast<float>(mean), factor, node, row_at(node, index));
  });
}

bool supports(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]);
}

int64_t work(const Tensor& node) {
  return node.elements() * 3;
}

}  // namespace

const OpKernel kRmsNormKernel{run_rms_norm, supports, nullptr, work};
const OpKernel kLayerNormKernel{run_layer_norm, supports, nullptr, work};

}  // namespace shoal::cpu
