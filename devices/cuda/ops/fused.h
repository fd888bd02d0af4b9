// Kernels that run several nodes of a decoder in one launch (fusion.h). This header also has functions that tell
// whether a kernel can write a record of its result (`ColumnRecord`). The fused products are in mul_mat_fused.h. Like
// run() of an op, the launching functions queue work and return. A CUDA graph may capture this work.
#pragma once

#include <span>

#include "devices/cuda/op_kernel.h"
#include "devices/cuda/ops/view.h"
#include "graph/readers.h"

namespace shoal::cuda {

// Fused rms_norm for rows of f32. The rows have no gaps and may have any length. A result may have the address of an
// operand of the same shape; other overlaps are not allowed. The kernel can also write a record of its result z
// (LaunchContext::writes).

/// The row of weights by which the normalised rows are multiplied.
struct NormWeight {
  const std::byte* data;
  bool is_constant;  ///< whether the weights may be read before the previous kernel has ended
  explicit NormWeight(const Tensor& tensor) : data(tensor.data), is_constant(cuda::is_constant(tensor)) {}
};
/// z = rms_norm(x) * weight.
void launch_rms_norm_mul(const LaunchContext& context, const View& x, const NormWeight& weight, View z, float eps);
/// y = a + b; z = rms_norm(y) * weight. If y and z have the same address, z overwrites y.
void launch_add_rms_norm(const LaunchContext& context, const View& a, const View& b, View y, const NormWeight& weight,
                         View z, float eps);
/// Whether the fused rms_norm supports these operands. The operands must be contiguous, not empty, f32 and of the same
/// shape. The weight must have one axis of shape[0] elements. b and y are nullptr if no addition precedes the norm.
bool can_fuse_rms_norm(const Tensor& a, const Tensor* b, const Tensor* y, const Tensor& weight, const Tensor& z);
/// Whether the fused rms_norm can write a record of z.
bool rms_norm_records(const Tensor& z);

/// Whether each kernel that run() may choose for this attention node can write a record of its result.
bool attention_records(const Tensor& node);

// Fused rope of queries and keys, and fused set_rows of keys and values. In a decoder, these nodes run between the
// projections and the attention. Any of these nodes may be missing. The launch writes all results, even results that no
// other node reads.

/// Returns the number of leading nodes that one launch can run. The number is 1 if only the first node can run, and 0
/// if no node can.
size_t count_rope_set_rows(std::span<Tensor* const> nodes);
/// Runs the nodes that count_rope_set_rows() has counted.
void rope_set_rows_run(const LaunchContext& context, std::span<Tensor* const> nodes);

// The fused selection of experts (models/arch/experts.cpp) consists of these nodes:
// - the gating of the logits
// - the addition of preferences
// - top_k
// - the weights of the chosen experts
// - the normalisation of these weights
// The fused selection chooses the same experts as the separate nodes. The weights are equal up to rounding.

/// Returns the number of leading nodes that form a selection of experts, or 0. The launch writes only the final ids and
/// weights.
size_t count_router(std::span<Tensor* const> nodes, const Readers& readers);
void router_run(const LaunchContext& context, std::span<Tensor* const> nodes);

}  // namespace shoal::cuda
