// unary: the function is looked up once and applied to pieces of rows.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  map_pieces(ctx, node, kernels().rows.unary[static_cast<size_t>(std::get<UnaryParams>(node.params).kind)]);
}

int64_t work(const Tensor& node) {
  return node.elements() * 8;
}

}  // namespace

const OpKernel kUnaryKernel{run, maps_floats, nullptr, work};

}  // namespace shoal::cpu
