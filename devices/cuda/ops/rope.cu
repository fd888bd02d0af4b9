// rope: the kernel of the fused rope (fused.h) runs if it supports the node and the feature `fuse` is on. Otherwise,
// the kernel in this file runs, with one thread per pair of elements. A thread rotates its pair, or copies a pair that
// is not rotated.
#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/ops/fused.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/rotation.h"

namespace shoal::cuda {
namespace {

/// Axis 0 of the index counts pairs of elements. The rotated pairs precede the pairs that are only copied.
struct Turn {
  Operand to, from;
  DType from_dtype;
  Rotation rotation;
  int64_t offset, length;

  __device__ void operator()(const Index& i) const {
    const int64_t rotating = rotation.dims / 2;
    const auto value = [&](int64_t at) { return float_at(from_dtype, from.at({at, i.i1, i.i2, i.i3})); };
    auto* const row = reinterpret_cast<float*>(to.at({0, i.i1, i.i2, i.i3}));
    if (i.i0 >= rotating) {
      for (int64_t stays = 2 * (i.i0 - rotating), end = stays + 2; stays < end; ++stays) {
        const int64_t at = stays < offset ? stays : stays + rotation.dims;
        if (at < length) row[at] = value(at);
      }
      return;
    }
    const PairPlace place = place_of(rotation, i.i0);
    const double angle = frequency(rotation, i.i0) * position_of(rotation, i.i2);
    const float2 pair =
        rotated(value(offset + place.low), value(offset + place.high), direction(angle, rotation.magnitude));
    row[offset + place.low] = pair.x;
    row[offset + place.high] = pair.y;
  }
};

void run(const LaunchContext& context, Tensor& node) {
  Tensor* const alone[] = {&node};
  if (!context.gpu.off.fuse && count_rope_set_rows(alone) == 1) return rope_set_rows_run(context, alone);
  const Tensor& x = *node.src[0];
  Shape shape = node.shape;
  shape[0] = (shape[0] + 1) / 2;
  walk(context, shape,
       Turn{operand_of(node), operand_of(x), x.dtype, rotation_of(node), std::get<RopeParams>(node.params).offset,
            node.shape[0]});
}

bool supports(const Tensor& node) {
  const auto& p = std::get<RopeParams>(node.params);
  const Tensor* factors = factors_of(node);
  if (node.dtype != DType::kF32 || !node.is_contiguous() || !is_float(node.src[0])) return false;
  if (node.src[1]->dtype != DType::kI32 || (factors && factors->dtype != DType::kF32)) return false;
  return p.dims % 2 == 0 && p.offset + p.dims <= node.shape[0] && p.mode < RopeMode::kCount;
}

}  // namespace

const OpKernel kRopeKernel{run, supports, nullptr};

}  // namespace shoal::cuda
