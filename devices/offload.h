// Decides whether a device should copy the weights of a product from host memory and run the product. The copy saves
// time only for large products, because the device is fast but its link to the host is slow. GPUs use this function as
// Device::offload_op. This function is pure.
#pragma once

#include "graph/tensor.h"

namespace shoal {

/// Smallest number of columns for which a device computes a product faster than a CPU, although the device must copy
/// the matrix over a bus.
inline constexpr int64_t kColumnsWorthStreaming = 32;

/// Whether the node is a product with at least kColumnsWorthStreaming columns per matrix. For experts, the average
/// number of columns per expert must reach this limit. Examples:
/// - A source of shape [4096, 512] has 512 columns: yes.
/// - 512 tokens that each select 4 of 128 experts give 16 columns per expert: no.
inline bool is_worth_streaming(const Tensor& node) {
  if (node.op == Op::kMulMat) return node.shape[1] >= kColumnsWorthStreaming;
  if (node.op != Op::kMulMatId) return false;
  const int64_t experts = node.src[0]->shape[2], taken = node.src[2]->shape[0];
  return node.shape[2] * taken >= kColumnsWorthStreaming * experts;
}

}  // namespace shoal
