// Decides whether a device should copy a product's weights from host memory to run the product. Meant for devices with
// fast products and a slow link to the host: GPUs use it as Device::offload_op. A pure function.
#pragma once

#include "graph/tensor.h"

namespace shoal {

/// Smallest number of columns for which copying the matrix over a bus is faster than computing the product on a CPU.
inline constexpr int64_t kColumnsWorthStreaming = 32;

/// Whether the node is a product with at least kColumnsWorthStreaming columns per matrix. For experts, the average
/// number of columns per expert is compared.
///   [4096, 512] tokens: yes;  128 experts, 512 tokens with 4 experts each: 16 columns per expert, no
inline bool is_worth_streaming(const Tensor& node) {
  if (node.op == Op::kMulMat) return node.shape[1] >= kColumnsWorthStreaming;
  if (node.op != Op::kMulMatId) return false;
  const int64_t experts = node.src[0]->shape[2], taken = node.src[2]->shape[0];
  return node.shape[2] * taken >= kColumnsWorthStreaming * experts;
}

}  // namespace shoal
