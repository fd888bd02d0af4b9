// unary: the function is looked up once and applied to pieces of rows.
#include "devices/cpu/ops/activations.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const UnaryKernel apply = activation_for(std::get<UnaryParams>(node.params).kind);
  const auto piece = [&](RowIndex row, int64_t begin, int64_t n) {
    float in[kChunk], out[kChunk];
    std::byte* result = row_at(node, row);
    float* to = target(node, result, begin, out);
    apply(load(x, row_at(x, row), begin, n, in), to, n);
    store(node, result, begin, n, to);
  };
  for_pieces(ctx, flat_shape(node, x), piece, chunk_for(node, x));
}

bool supports(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]);
}

int64_t work(const Tensor& node) {
  return node.elements() * 8;
}

}  // namespace

const OpKernel kUnaryKernel{run, supports, nullptr, work};

}  // namespace shoal::cpu
