// scale: x * scale + bias.
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

struct ScaleBy {
  using Value = float;
  float scale, bias;
  __device__ float operator()(float x) const { return Rounded(x) * Rounded(scale) + Rounded(bias); }
};

void run(const LaunchContext& context, Tensor& node) {
  const auto& params = std::get<ScaleParams>(node.params);
  const MapSource sources[] = {{operand_of(*node.src[0]), node.src[0]->dtype}};
  map_floats<1>(context, node, sources, ScaleBy{params.scale, params.bias});
}

bool supports(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]);
}

}  // namespace

const OpKernel kScaleKernel{run, supports, nullptr};

}  // namespace shoal::cuda
