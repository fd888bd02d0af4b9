// pad: one thread computes one element. The bits of elements are copied.
#include <cstring>

#include "devices/cuda/ops/copy.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {
namespace {

template <class Unit>
struct PadUnit {
  Operand to, from;
  int64_t length[kMaxDims], before[kMaxDims];
  PadMode mode;
  Unit value;

  /// Replaces an index of the result by the index of the source. Returns false for a new element in mode kConstant.
  __device__ bool find(int64_t& i, int axis) const {
    const int64_t last = length[axis] - 1;
    i -= before[axis];
    if (i >= 0 && i <= last) return true;
    if (mode == PadMode::kReflect) {
      i = i < 0 ? -i : 2 * last - i;
    } else {
      i = i < 0 ? 0 : last;
    }
    return mode != PadMode::kConstant;
  }
  __device__ void operator()(const Index& i) const {
    Index source = i;
    const bool copies = find(source.i0, 0) && find(source.i1, 1) && find(source.i2, 2) && find(source.i3, 3);
    store_as<Unit>(to.at(i), copies ? load_as<Unit>(from.at(source)) : value);
  }
};

void run(const LaunchContext& context, Tensor& node) {
  const auto& params = std::get<PadParams>(node.params);
  const DTypeTraits& type = traits(node.dtype);
  with_unit(static_cast<int64_t>(type.block_bytes), [&](auto zero) {
    PadUnit<decltype(zero)> unit{operand_of(node), operand_of(*node.src[0]), {}, {}, params.mode, zero};
    for (int axis = 0; axis < kMaxDims; ++axis) {
      unit.length[axis] = node.src[0]->shape[axis];
      unit.before[axis] = params.before[axis];
    }
    std::byte bits[sizeof(float)];
    type.from_f32(&params.value, bits, 1);
    std::memcpy(&unit.value, bits, type.block_bytes);
    walk(context, node.shape, unit);
  });
}

bool supports(const Tensor& node) {
  return is_float(&node) && node.src[0]->dtype == node.dtype && node.is_contiguous();
}

}  // namespace

const OpKernel kPadKernel{run, supports, nullptr};

}  // namespace shoal::cuda
