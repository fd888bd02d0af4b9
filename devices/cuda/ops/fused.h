// Kernels that run several nodes of a decoder in one launch (fusion.h), and checks of whether a kernel can write a
// record of its result. mul_mat_fused.h contains the fused products. Like run() of an op, these functions queue work
// and return, and may be captured.
#pragma once

#include <span>

#include "devices/cuda/op_kernel.h"
#include "devices/cuda/ops/view.h"
#include "graph/readers.h"

namespace shoal::cuda {

// Fused rms_norm, for rows of f32 without gaps and of any length. A result may have the address of an operand of the
// same shape; other overlaps are not allowed. A record of z can also be written (LaunchContext::writes).

/// The row of weights by which normed rows are multiplied.
struct NormWeight {
  const std::byte* data;
  bool is_constant;  ///< whether it may be read before the previous kernel has ended
  explicit NormWeight(const Tensor& tensor) : data(tensor.data), is_constant(cuda::is_constant(tensor)) {}
};
/// z = rms_norm(x) * weight.
void launch_rms_norm_mul(const LaunchContext& context, const View& x, const NormWeight& weight, View z, float eps);
/// y = a + b; z = rms_norm(y) * weight. y and z may have the same address, which contains z in the end.
void launch_add_rms_norm(const LaunchContext& context, const View& a, const View& b, View y, const NormWeight& weight,
                         View z, float eps);
/// Whether the fused rms_norm supports these operands. They must be contiguous, not empty, f32 and of the same shape.
/// The weight must have shape [shape[0]]. b and y are nullptr if there is no sum.
bool can_fuse_rms_norm(const Tensor& a, const Tensor* b, const Tensor* y, const Tensor& weight, const Tensor& z);
/// Whether a record of z can be written.
bool rms_norm_records(const Tensor& z, const GpuTraits& gpu);

/// Whether every kernel that may be chosen for this attention node can write a record of its result.
bool attention_records(const Tensor& node);

// Fused rope of queries and keys, and set_rows of keys and values. In a decoder, these nodes run between the
// projections and the attention. Any of them may be missing. All results are written, even results that only these
// nodes read.

/// Number of leading nodes that one launch can run. 1: only the first node can run alone; 0: none of them.
size_t count_rope_set_rows(std::span<Tensor* const> nodes);
/// Runs nodes counted by count_rope_set_rows().
void rope_set_rows_run(const LaunchContext& context, std::span<Tensor* const> nodes);

// The fused selection of experts (models/arch/experts.cpp): gating of the logits, a sum with preferences, top_k, the
// weights of the chosen experts, and the normalisation of these weights. The same experts are chosen as without fusion;
// their weights are equal up to rounding.

/// Number of leading nodes that form such a selection, or 0. Only the final ids and weights are written.
size_t count_router(std::span<Tensor* const> nodes, const Readers& readers);
void router_run(const LaunchContext& context, std::span<Tensor* const> nodes);

}  // namespace shoal::cuda
