// Kernels that run several nodes of a decoder in one launch (fusion.h), besides joined products (mul_mat_fused.h), and
// which results can be left as a record. As run() of an op they queue and return, and may be captured.
#pragma once

#include <span>

#include "devices/cuda/op_kernel.h"
#include "devices/cuda/ops/view.h"
#include "graph/readers.h"

namespace shoal::cuda {

// rms_norm together with what stands around it: rows of f32 without gaps, of any length. A result may lie where an
// operand of its own shape lies, at the same address; other overlaps are not allowed. z may be left as a record, too
// (LaunchContext::writes).

/// The row that normed rows are multiplied by.
struct NormWeight {
  const std::byte* data;
  bool is_constant;  ///< it is read while the kernel before this one ends
  explicit NormWeight(const Tensor& tensor) : data(tensor.data), is_constant(cuda::is_constant(tensor)) {}
};
/// z = rms_norm(x) * weight.
void launch_rms_norm_mul(const LaunchContext& context, const View& x, const NormWeight& weight, View z, float eps);
/// y = a + b; z = rms_norm(y) * weight. z may be where y is: it is what stays there.
void launch_add_rms_norm(const LaunchContext& context, const View& a, const View& b, View y, const NormWeight& weight,
                         View z, float eps);
/// Can these be the operands? Contiguous f32 of one shape and not empty, the weight [shape[0]]; b and y nullptr where
/// there is no sum.
bool can_fuse_rms_norm(const Tensor& a, const Tensor* b, const Tensor* y, const Tensor& weight, const Tensor& z);
/// z can be left as a record.
bool rms_norm_records(const Tensor& z, const GpuTraits& gpu);

/// The result of attention can be left as a record by all kernels that may be chosen when addresses are known.
bool attention_records(const Tensor& node);

// rope of queries and keys and set_rows of keys and values: what a decoder does between its projections and its
// attention. Of these nodes any may be missing; values that only a node of the launch reads are written too.

/// The number of nodes, from the first on, that one launch runs. 1: the first node alone; 0: none.
size_t count_rope_set_rows(std::span<Tensor* const> nodes);
/// Of as many nodes as that says.
void rope_set_rows_run(const LaunchContext& context, std::span<Tensor* const> nodes);

// The choice of experts (models/arch/experts.cpp): gating of the logits, a sum with preferences, top_k, the weights of
// the chosen ones and their normalisation. Experts are chosen as by the single nodes, weights agree within rounding.

/// How many nodes from the first one on are such a chain; 0: none. Only its ids and last weights are written.
size_t count_router(std::span<Tensor* const> nodes, const Readers& readers);
void router_run(const LaunchContext& context, std::span<Tensor* const> nodes);

}  // namespace shoal::cuda
