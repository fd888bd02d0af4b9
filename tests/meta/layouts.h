// Functions that make layouts and weights for tests of meta devices.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include "graph/tensor.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

/// Parses "6:{0} 2:{1,2}", the unfolded form of Partition::to_string.
inline Partition parse_partition(int devices, std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<Run> runs;
  for (Run run; in >> run.length; runs.push_back(run)) {
    char mark = 0;
    run.owners.clear();
    in >> mark >> mark;
    for (int owner = 0; mark != '}' && in >> owner >> mark;) run.owners.push_back(owner);
  }
  return Partition(devices, std::move(runs));
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
