// Copies of elements without change of dtype, between any strides, in the widest accesses that the layouts allow.
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

/// Rows of bytes: axis 0 counts bytes instead of blocks.
inline Shape shape_in_bytes(const Tensor& tensor, const Shape& shape) {
  const DTypeTraits& type = traits(tensor.dtype);
  return {shape[0] / type.block_elems * static_cast<int64_t>(type.block_bytes), shape[1], shape[2], shape[3]};
}

/// The largest access with which rows of bytes of this shape can be taken in all operands.
inline int64_t widest_unit(const Shape& bytes, std::initializer_list<const Operand*> operands) {
  for (const int64_t unit : {16, 8, 4, 2}) {
    if (std::all_of(operands.begin(), operands.end(), [&](auto* one) { return has_packs(*one, bytes, 1, unit); })) {
      return unit;
    }
  }
  return 1;
}

/// The elements of `from`, one after the other from `to` on, whose strides along axes 1 to 3 are those given (its rows
/// have no gaps).
void copy_to(const LaunchContext& context, const Tensor& tensor, std::byte* data, const Strides& strides);

/// contiguous: node = its source.
void run_contiguous(const LaunchContext& context, Tensor& node);

}  // namespace shoal::cuda
