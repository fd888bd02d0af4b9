// clamp: NaN stays NaN.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const auto [min, max] = std::get<ClampParams>(node.params);
  const auto piece = [&, min = min, max = max](RowIndex row, int64_t begin, int64_t n) {
    float in[kChunk], out[kChunk];
    std::byte* result = row_at(node, row);
    float* to = target(node, result, begin, out);
    kernels().rows.clamp(load(x, row_at(x, row), begin, n, in), min, max, to, n);
    store(node, result, begin, n, to);
  };
  for_pieces(ctx, flat_shape(node, x), piece, chunk_for(node, x));
}

bool supports(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]);
}

}  // namespace

const OpKernel kClampKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
