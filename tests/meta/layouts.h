// Layouts and weights as tests of the meta device write them.
#pragma once

#include <string_view>

#include "graph/tensor.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

/// split(1, 2, "6:{0} 2:{1}")
inline Layout split(int axis, int ranks, std::string_view runs) {
  return Layout::split(axis, Partition::parse(ranks, runs));
}

/// A weight that is placed nowhere.
inline Tensor weight(DType dtype, Shape shape) {
  Tensor tensor;
  tensor.name = "blk.0.attn_q";
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = contiguous_strides(dtype, shape);
  tensor.role = Role::kWeight;
  return tensor;
}

}  // namespace shoal::meta
