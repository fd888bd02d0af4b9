// clamp: NaN stays NaN.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  const ClampParams& params = std::get<ClampParams>(node.params);
  map_pieces(ctx, node, [&](const float* from, float* to, int64_t n) {
    kernels().rows.clamp(from, params.min, params.max, to, n);
  });
}

}  // namespace

const OpKernel kClampKernel{run, maps_floats, nullptr, nullptr};

}  // namespace shoal::cpu
