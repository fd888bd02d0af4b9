// Copies of elements without a change of dtype. Any strides are supported. Each access is as wide as the layouts allow.
#pragma once

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/walk.h"

namespace shoal::cuda {

/// Calls f(Unit{}) with an unsigned type of `bytes` bytes: 1, 2, 4, 8 or 16.
template <class F>
void with_unit(int64_t bytes, F&& f) {
  switch (bytes) {
    case 16:
      return f(uint4{});
    case 8:
      return f(uint64_t{});
    case 4:
      return f(uint32_t{});
    case 2:
      return f(uint16_t{});
    default:
      return f(uint8_t{});
  }
}

/// Returns `shape` with the length of axis 0 in bytes instead of elements.
inline Shape shape_in_bytes(const Tensor& tensor, const Shape& shape) {
  const DTypeTraits& type = traits(tensor.dtype);
  return {shape[0] / type.block_elems * static_cast<int64_t>(type.block_bytes), shape[1], shape[2], shape[3]};
}

/// Returns the largest access width, in bytes, that all operands allow for rows of this shape.
inline int64_t widest_unit(const Shape& bytes, std::initializer_list<const Operand*> operands) {
  for (const int64_t unit : {16, 8, 4, 2}) {
    if (std::all_of(operands.begin(), operands.end(), [&](auto* one) { return has_packs(*one, bytes, 1, unit); })) {
      return unit;
    }
  }
  return 1;
}

/// Copies the elements of `tensor` to `data`. Rows of the copy have no gaps. `strides` contains the copy's strides
/// along axes 1 to 3.
void copy_to(const LaunchContext& context, const Tensor& tensor, std::byte* data, const Strides& strides);

/// Runs the op contiguous: copies the source to the node.
void run_contiguous(const LaunchContext& context, Tensor& node);

}  // namespace shoal::cuda
