// upsample: one thread computes one element. Elements are interpolated in f32.
#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/view.h"
#include "devices/cuda/ops/walk.h"
#include "graph/ops/resample.h"

namespace shoal::cuda {
namespace {

/// The two source elements of an element of the result, and the weight of the second element.
struct Tap {
  int64_t low, high;
  float weight;
};

struct UpsampleElement {
  Operand to, from;
  DType dtype;
  bool nearest;
  Resampling axes[2];
  int64_t length[2];

  __device__ Tap tap(int axis, int64_t i) const {
    const Resampling& map = axes[axis];
    int64_t position = i * map.factor + map.offset;
    if (position < 0) position = 0;
    const bool small = position <= 0x7fffffff && map.divisor <= 0x7fffffff;  // 32-bit divisions are much faster
    const int64_t low =
        small ? static_cast<uint32_t>(position) / static_cast<uint32_t>(map.divisor) : position / map.divisor;
    const auto rest = static_cast<float>(position - low * map.divisor);
    return {low, low + 1 < length[axis] ? low + 1 : low, rest / static_cast<float>(map.divisor)};
  }
  __device__ float row(const Index& i, const Tap& x, int64_t y) const {
    const float low = float_at(dtype, from.at({x.low, y, i.i2, i.i3}));
    return low * (1 - x.weight) + float_at(dtype, from.at({x.high, y, i.i2, i.i3})) * x.weight;
  }
  __device__ void operator()(const Index& i) const {
    const Tap x = tap(0, i.i0), y = tap(1, i.i1);
    if (nearest) return store_float(dtype, float_at(dtype, from.at({x.low, y.low, i.i2, i.i3})), to.at(i));
    store_float(dtype, row(i, x, y.low) * (1 - y.weight) + row(i, x, y.high) * y.weight, to.at(i));
  }
};

void run(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const UpsampleMode mode = std::get<UpsampleParams>(node.params).mode;
  UpsampleElement element{operand_of(node), operand_of(x), x.dtype, mode == UpsampleMode::kNearest, {}, {}};
  for (int axis = 0; axis < 2; ++axis) {
    element.axes[axis] = resampling_of(mode, x.shape[axis], node.shape[axis]);
    element.length[axis] = x.shape[axis];
  }
  walk(context, node.shape, element);
}

bool supports(const Tensor& node) {
  return is_float(&node) && node.src[0]->dtype == node.dtype && node.is_contiguous();
}

}  // namespace

const OpKernel kUpsampleKernel{run, supports, nullptr};

}  // namespace shoal::cuda
