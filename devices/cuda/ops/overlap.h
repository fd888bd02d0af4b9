// Whether tensors share memory: what kernels that do several nodes at once must know.
#pragma once

#include "graph/tensor.h"

namespace shoal::cuda {

inline bool overlap(const Tensor& a, const Tensor& b) {
  return a.data < b.data + b.span_bytes() && b.data < a.data + a.span_bytes();
}

}  // namespace shoal::cuda
