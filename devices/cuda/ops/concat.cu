// concat: every source is copied to its place in the result.
#include "devices/cuda/ops/copy.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

void run(const LaunchContext& context, Tensor& node) {
  const int axis = std::get<ConcatParams>(node.params).axis;
  std::byte* to = node.data;
  for (const Tensor* source : node.src) {
    copy_to(context, *source, to, node.strides);
    const int64_t steps = axis == 0 ? shape_in_bytes(*source, source->shape)[0] : source->shape[axis];
    to += axis == 0 ? steps : steps * static_cast<int64_t>(node.strides[axis]);
  }
}

bool supports(const Tensor& node) {
  for (const Tensor* source : node.src) {
    if (!is_readable(source) || source->dtype != node.dtype) return false;
  }
  return node.is_contiguous();
}

}  // namespace

const OpKernel kConcatKernel{run, supports, nullptr};

}  // namespace shoal::cuda
