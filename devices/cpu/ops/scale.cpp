// scale: x * scale + bias.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const auto [scale, bias] = std::get<ScaleParams>(node.params);
  for_pieces(ctx, flat_shape(node, x), [&, scale = scale, bias = bias](RowIndex row, int64_t begin, int64_t n) {
    float in[kChunk], out[kChunk];
    std::byte* result = row_at(node, row);
    const float* from = load(x, row_at(x, row), begin, n, in);
    float* to = target(node, result, begin, out);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * scale + bias;
    store(node, result, begin, n, to);
  });
}

bool supports(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]);
}

}  // namespace

const OpKernel kScaleKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
