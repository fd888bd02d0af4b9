// Products joined with what follows them, for plans with such nodes side by side. They use the
// kernels of mul_mat and, unless said otherwise, the workspace of the first mul_mat node, and write to `out` alone; the
// joined nodes need no memory of their own. supports asks about dtypes, shapes and strides; like run() of an op,
// nothing waits or throws.
#pragma once

#include <span>
#include <vector>

#include "devices/cuda/op_kernel.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

/// A product by some b: out = a b, act(a b) * (up b), or either plus the addend; of experts also their weighted sum.
struct JoinedProduct {
  const Tensor* a = nullptr;
  const Tensor* up = nullptr;  ///< laid out as a
  const Tensor* addend = nullptr;
  const Tensor* weights = nullptr;  ///< [1, slots]
  const Tensor* out = nullptr;
  const Tensor* node = nullptr;  ///< the product itself; set by joined_products
};

/// No queued work writes the weights.
inline bool has_constant_weights(const JoinedProduct& product) {
  return is_constant(*product.a) && (!product.up || is_constant(*product.up));
}

/// mul_mat_id: columns [first, first + count) of the sorted (slot, token) pairs, all of one expert. matrix < 0: the
/// expert is elsewhere, and the results are 0.
struct ColumnGroup {
  int32_t matrix, first, count;
};

/// out = act(gate) * up, where gate and up are products of one b by two matrices that are laid out alike.
bool mul_mat_glu_supports(const Tensor& gate, const Tensor& up, const Tensor& out);
void mul_mat_glu_run(const LaunchContext& context, const Tensor& gate, const Tensor& up, GluKind kind, Tensor& out);

/// The same of experts: both are mul_mat_id of one b and the same ids. Experts are found, and pairs sorted, once.
bool mul_mat_id_glu_supports(const Tensor& gate, const Tensor& up, const Tensor& out);
void mul_mat_id_glu_run(const LaunchContext& context, const Tensor& gate, const Tensor& up, GluKind kind, Tensor& out);

/// out[m]: the sum of the slots of a mul_mat_id of one token, times `weights` [1, slots]. `out` lies apart.
bool mul_mat_id_sum_supports(const Tensor& node, const Tensor& weights, const Tensor& out, const GpuTraits& gpu);
void mul_mat_id_sum_run(const LaunchContext& context, const Tensor& node, const Tensor& weights, Tensor& out);

/// out = product + addend: a bias [m] or a residual of the product's shape (each axis but 0 may have length 1). `out`
/// may be the addend itself.
bool mul_mat_add_supports(const Tensor& product, const Tensor& addend, const Tensor& out);
void mul_mat_add_run(const LaunchContext& context, const Tensor& product, const Tensor& addend, Tensor& out);

/// Products of one b, each followed by its sum with a bias or residual or not, in their order. b is prepared once,
/// where it has to be, in the workspace of the last one, on which no result, addend or matrix may lie. Up to eight
/// columns give the same bits as one by one, unless rows are short; one column takes one launch; tiles may divide k
/// otherwise.
bool mul_mat_many_supports(std::span<Tensor* const> nodes, const GpuTraits& gpu);
void mul_mat_many_run(const LaunchContext& context, std::span<Tensor* const> nodes);
/// The forms of b that the kernels of these nodes take as records, which are joined products of b or of experts.
ColumnForms mul_mat_forms(std::span<Tensor* const> nodes, const GpuTraits& gpu);
/// What these nodes are.
std::vector<JoinedProduct> joined_products(std::span<Tensor* const> nodes);

}  // namespace shoal::cuda
