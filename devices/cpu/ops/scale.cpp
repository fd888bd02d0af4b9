// scale: x * scale + bias.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  const ScaleParams& params = std::get<ScaleParams>(node.params);
  map_pieces(ctx, node, [&](const float* from, float* to, int64_t n) {
    kernels().rows.scale(from, params.scale, params.bias, to, n);
  });
}

}  // namespace

const OpKernel kScaleKernel{run, maps_floats, nullptr, nullptr};

}  // namespace shoal::cpu
