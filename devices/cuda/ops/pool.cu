// pool_2d: one thread computes one element. Sums are computed in f32.
#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/reduce.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/view.h"
#include "devices/cuda/ops/walk.h"

namespace shoal::cuda {
namespace {

struct PoolElement {
  Operand to, from;
  DType dtype;
  PoolKind kind;
  int64_t length[2], kernel[2], stride[2], before[2];
  bool count_pads;

  __device__ int64_t begin(int axis, int64_t i) const {
    const int64_t first = i * stride[axis] - before[axis];
    return first < 0 ? 0 : first;
  }
  __device__ int64_t end(int axis, int64_t i) const {
    const int64_t after = i * stride[axis] - before[axis] + kernel[axis];
    return after < length[axis] ? after : length[axis];
  }
  __device__ void operator()(const Index& i) const {
    const int64_t x_begin = begin(0, i.i0), x_end = end(0, i.i0), y_begin = begin(1, i.i1), y_end = end(1, i.i1);
    const bool largest = kind == PoolKind::kMax;
    float result = largest ? minus_infinity() : 0.0f;
    for (int64_t y = y_begin; y < y_end; ++y) {
      for (int64_t x = x_begin; x < x_end; ++x) {
        const float value = float_at(dtype, from.at({x, y, i.i2, i.i3}));
        if (!largest) {
          result += value;
        } else if (value > result || value != value) {  // a NaN stays the result
          result = value;
        }
      }
    }
    const int64_t count = count_pads ? kernel[0] * kernel[1] : (x_end - x_begin) * (y_end - y_begin);
    store_as<float>(to.at(i), largest ? result : result / static_cast<float>(count));
  }
};

void run(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  const auto& params = std::get<PoolParams>(node.params);
  PoolElement element{operand_of(node), operand_of(x), x.dtype, params.kind, {}, {}, {}, {}, params.count_pads};
  for (int axis = 0; axis < 2; ++axis) {
    element.length[axis] = x.shape[axis];
    element.kernel[axis] = params.kernel[axis];
    element.stride[axis] = params.stride[axis];
    element.before[axis] = params.pads[2 * axis];
  }
  walk(context, node.shape, element);
}

bool supports(const Tensor& node) {
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]);
}

}  // namespace

const OpKernel kPool2dKernel{run, supports, nullptr};

}  // namespace shoal::cuda
