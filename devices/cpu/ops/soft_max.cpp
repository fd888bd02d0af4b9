// The op soft_max. It writes the scaled and masked logits to the result row. Then it replaces each logit by its
// exponential and divides the exponentials by their sum. This sum includes the sink.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

const Tensor* source(const Tensor& node, size_t index) {
  return index < node.src.size() ? node.src[index] : nullptr;
}

/// Writes x * scale + mask to `to`. Returns the largest of these logits.
float write_logits(const Tensor& x, const Tensor* mask, RowIndex row, float scale, float* to) {
  float top = kMinusInfinity;
  for (int64_t begin = 0; begin < x.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, x.shape[0] - begin);
    float in[kChunk], bias[kChunk];
    const float* values = load(x, row_at(x, row), begin, n, in);
    const float* added = mask ? load(*mask, broadcast_row_at(*mask, row), begin, n, bias) : nullptr;
    top = std::max(top, kernels().rows.logits(values, added, scale, to + begin, n));
  }
  return top;
}

/// Replaces each x[i] by exp(x[i] - top). Returns the sum of the new values.
double exponentiate(float* x, int64_t length, float top) {
  double sum = 0;
  for (int64_t begin = 0; begin < length; begin += kChunk) {
    sum += kernels().vector.exp(x + begin, top, x + begin, std::min(kChunk, length - begin));
  }
  return sum;
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor* mask = source(node, 1);
  const Tensor* sinks = source(node, 2);
  const float scale = std::get<SoftMaxParams>(node.params).scale;
  const int64_t length = node.shape[0];
  for_rows(ctx, node.shape, [&](RowIndex row) {
    auto* to = reinterpret_cast<float*>(row_at(node, row));
    float top = write_logits(*node.src[0], mask, row, scale, to);
    const float sink =
        sinks ? *reinterpret_cast<const float*>(sinks->data + row.i2 * sinks->strides[0]) : kMinusInfinity;
    top = std::max(top, sink);
    // If `top` is -infinity, every logit is masked or NaN, and the sink is missing, -infinity or NaN. The result must
    // not be zeros if a logit or the sink is NaN.
    const auto is_nan = [](float logit) { return std::isnan(logit); };
    if (top == kMinusInfinity && !is_nan(sink) && std::none_of(to, to + length, is_nan)) {
      std::memset(to, 0, length * sizeof(float));
      return;
    }
    const double rest = sinks ? std::exp(static_cast<double>(sink) - top) : 0;
    const double sum = exponentiate(to, length, top) + rest;
    const auto factor = static_cast<float>(1.0 / sum);
    kernels().rows.normalize(to, 0, factor, to, length);
  });
}

bool supports(const Tensor& node) {
  const Tensor* mask = source(node, 1);
  const Tensor* sinks = source(node, 2);
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]) && (!mask || is_float(mask)) &&
         (!sinks || sinks->dtype == DType::kF32);
}

int64_t work(const Tensor& node) {
  return node.elements() * 8;
}

}  // namespace

const OpKernel kSoftMaxKernel{run, supports, nullptr, work};

}  // namespace shoal::cpu
