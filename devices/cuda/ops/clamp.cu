// clamp: NaN stays NaN.
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

struct ClampTo {
  using Value = float;
  float min, max;
  __device__ float operator()(float x) const {
    const float low = x < min ? min : x;
    return low > max ? max : low;
  }
};

void run(const LaunchContext& context, Tensor& node) {
  const auto& params = std::get<ClampParams>(node.params);
  const MapSource sources[] = {{operand_of(*node.src[0]), node.src[0]->dtype}};
  map_floats<1>(context, node, sources, ClampTo{params.min, params.max});
}

bool supports(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]);
}

}  // namespace

const OpKernel kClampKernel{run, supports, nullptr};

}  // namespace shoal::cuda
