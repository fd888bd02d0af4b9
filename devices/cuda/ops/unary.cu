// unary: one kernel for all functions.
#include "devices/cuda/kernels/activations.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

struct Activate {
  using Value = float;
  UnaryKind kind;
  __device__ float operator()(float x) const { return activate(kind, x); }
};

void run(const LaunchContext& context, Tensor& node) {
  const MapSource sources[] = {{operand_of(*node.src[0]), node.src[0]->dtype}};
  map_floats<1>(context, node, sources, Activate{std::get<UnaryParams>(node.params).kind});
}

bool supports(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]);
}

}  // namespace

const OpKernel kUnaryKernel{run, supports, nullptr};

}  // namespace shoal::cuda
