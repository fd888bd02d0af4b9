// Functions that make layouts and weights for tests of meta devices.
#pragma once

#include <string_view>

#include "graph/tensor.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

inline Partition parse_partition(int devices, std::string_view text) {
  return Partition::parse(devices, text);
}

/// Parses a split layout: split(1, 2, "6:{0} 2:{1}").
inline Layout split(int axis, int ranks, std::string_view runs) {
  return Layout::split(axis, parse_partition(ranks, runs));
}

/// A weight without memory.
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
