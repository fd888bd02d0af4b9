#include "graph/tensor.h"

#include <fmt/format.h>

#include "base/error.h"

namespace shoal {
namespace {

/// Number of blocks along axis 0.
int64_t row_blocks(const Tensor& tensor) {
  return tensor.shape[0] / traits(tensor.dtype).block_elems;
}

}  // namespace

size_t Tensor::bytes() const {
  const DTypeTraits& type = traits(dtype);
  return static_cast<size_t>(elements() / type.block_elems) * type.block_bytes;
}

size_t Tensor::span_bytes() const {
  if (empty()) return 0;
  size_t last = static_cast<size_t>(row_blocks(*this) - 1) * strides[0];
  for (int axis = 1; axis < kMaxDims; ++axis) last += static_cast<size_t>(shape[axis] - 1) * strides[axis];
  return last + traits(dtype).block_bytes;
}

bool Tensor::is_row_contiguous() const {
  return empty() || row_blocks(*this) == 1 || strides[0] == traits(dtype).block_bytes;
}

bool Tensor::is_contiguous() const {
  if (empty()) return true;
  if (!is_row_contiguous()) return false;
  // The stride of an axis of length 1 is never used.
  size_t expected = static_cast<size_t>(row_blocks(*this)) * traits(dtype).block_bytes;
  for (int axis = 1; axis < kMaxDims; ++axis) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= static_cast<size_t>(shape[axis]);
  }
  return true;
}

Strides contiguous_strides(DType dtype, const Shape& shape) {
  Strides strides{traits(dtype).block_bytes, bytes_for(dtype, shape[0]), 0, 0};
  for (int axis = 2; axis < kMaxDims; ++axis) {
    strides[axis] = strides[axis - 1] * static_cast<size_t>(shape[axis - 1]);
  }
  return strides;
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.shape == b.shape;
}

std::string to_string(const Shape& shape) {
  int last = kMaxDims - 1;
  while (last > 0 && shape[last] == 1) --last;
  std::string text = fmt::format("[{}", shape[0]);
  for (int axis = 1; axis <= last; ++axis) text += fmt::format(", {}", shape[axis]);
  return text + "]";
}

std::string describe(const Tensor& tensor) {
  return fmt::format("{} {} {}", tensor.name, name_of(tensor.dtype), to_string(tensor.shape));
}

}  // namespace shoal
