// glu: act(gate) * up. Fused, a row of the source is the gate followed by the up part.
#include "devices/cuda/kernels/activations.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

template <GluKind kKind>
struct Gate {
  using Value = float;
  __device__ float operator()(float gate, float up) const { return activate_gate<kKind>(gate) * up; }
};

const Tensor* separate_up(const Tensor& node) {
  return node.src.size() > 1 ? node.src[1] : nullptr;
}

template <GluKind kKind>
void run_kind(const LaunchContext& context, Tensor& node) {
  const Tensor& gate = *node.src[0];
  const Tensor* separate = separate_up(node);
  const Tensor& up = separate ? *separate : gate;
  MapSource sources[] = {{operand_of(gate), gate.dtype}, {operand_of(up), up.dtype}};
  if (!separate) sources[1].operand.data += node.shape[0] * sources[1].operand.strides[0];
  map_floats<2>(context, node, sources, Gate<kKind>{});
}

void run(const LaunchContext& context, Tensor& node) {
  switch (std::get<GluParams>(node.params).kind) {
    case GluKind::kSwiglu:
      return run_kind<GluKind::kSwiglu>(context, node);
    case GluKind::kGeglu:
      return run_kind<GluKind::kGeglu>(context, node);
    case GluKind::kGegluErf:
      return run_kind<GluKind::kGegluErf>(context, node);
    case GluKind::kGegluQuick:
      return run_kind<GluKind::kGegluQuick>(context, node);
    case GluKind::kReglu:
      return run_kind<GluKind::kReglu>(context, node);
    case GluKind::kCount:
      return;
  }
}

bool supports(const Tensor& node) {
  const Tensor* up = separate_up(node);
  return is_float_result(node) && is_float(node.src[0]) && (!up || is_float(up));
}

}  // namespace

const OpKernel kGluKernel{run, supports, nullptr};

}  // namespace shoal::cuda
