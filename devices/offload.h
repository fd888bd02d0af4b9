// When a device that is fast at products, and far from the host's memory, should have weights brought to it that lie
// there: what GPUs say as Device::offload_op. A pure function.
#pragma once

#include "graph/tensor.h"

namespace shoal {

/// Columns of a product from which on it takes a CPU longer to compute them than a bus to bring the matrix.
inline constexpr int64_t kColumnsWorthBringing = 32;

/// Is the node a product that each of its matrices has so many columns for? Of experts on the average.
///   [4096, 512] tokens: yes;  128 experts of which each of 512 tokens takes 4: 16 columns, no
inline bool is_worth_bringing(const Tensor& node) {
  if (node.op == Op::kMulMat) return node.shape[1] >= kColumnsWorthBringing;
  if (node.op != Op::kMulMatId) return false;
  const int64_t experts = node.src[0]->shape[2], taken = node.src[2]->shape[0];
  return node.shape[2] * taken >= kColumnsWorthBringing * experts;
}

}  // namespace shoal
