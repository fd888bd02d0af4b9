// Functions for products that are fused with the nodes after them (joined nodes). In the plan, these nodes are
// consecutive. Fused products use the kernels of mul_mat. Unless a comment says otherwise, a fused product uses the
// workspace of the first mul_mat node and writes only `out`. The results of the other nodes need no memory. The
// `supports` functions check dtypes, shapes and strides. Like run() of an op, these functions do not wait or throw.
#pragma once

#include <span>
#include <vector>

#include "devices/cuda/op_kernel.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

/// A product with a given b: out = a b or act(a b) * (up b). An addend is optional. For experts, `out` may be the
/// weighted sum over the slots (the experts of a token).
struct JoinedProduct {
  const Tensor* a = nullptr;
  const Tensor* up = nullptr;  ///< nullptr, or a matrix with the layout of `a`
  const Tensor* addend = nullptr;
  const Tensor* weights = nullptr;  ///< [1, slots]; nullptr: no weighted sum
  const Tensor* out = nullptr;
  const Tensor* node = nullptr;  ///< the mul_mat node; set by joined_products
};

/// Whether the weights are constant: no queued work writes them.
inline bool has_constant_weights(const JoinedProduct& product) {
  return is_constant(*product.a) && (!product.up || is_constant(*product.up));
}

/// For mul_mat_id: columns [first, first + count) of the sorted (expert slot, token) pairs. All pairs of a group have
/// the same expert. If matrix < 0, the expert is on another device, and the results are 0.
struct ColumnGroup {
  int32_t matrix, first, count;
};

/// out = act(gate) * up. The nodes gate and up are products of the same b. Their two matrices have the same layout.
bool mul_mat_glu_supports(const Tensor& gate, const Tensor& up, const Tensor& out);
void mul_mat_glu_run(const LaunchContext& context, const Tensor& gate, const Tensor& up, GluKind kind, Tensor& out);

/// out = act(gate) * up for experts. The nodes gate and up are mul_mat_id with the same b and ids. So the experts are
/// looked up only once, and the pairs are sorted only once.
bool mul_mat_id_glu_supports(const Tensor& gate, const Tensor& up, const Tensor& out);
void mul_mat_id_glu_run(const LaunchContext& context, const Tensor& gate, const Tensor& up, GluKind kind, Tensor& out);

/// mul_mat_id for one token, followed by the weighted sum over the slots. Each slot has a weight in `weights`
/// [1, slots]. out[m] is the sum of the weighted results of all slots. `out` must not overlap the operands.
bool mul_mat_id_sum_supports(const Tensor& node, const Tensor& weights, const Tensor& out, const GpuTraits& gpu);
void mul_mat_id_sum_run(const LaunchContext& context, const Tensor& node, const Tensor& weights, Tensor& out);

/// out = product + addend. The addend is a bias [m] or a residual. A residual has the product's shape, but axes other
/// than 0 may have length 1. `out` may be the addend itself.
bool mul_mat_add_supports(const Tensor& product, const Tensor& addend, const Tensor& out);
void mul_mat_add_run(const LaunchContext& context, const Tensor& product, const Tensor& addend, Tensor& out);

/// Several products with the same b. `nodes` contains the products in order. The addition of a bias or residual may
/// follow each product. If b must be prepared, the workspace of the last product holds the prepared b. No result,
/// addend or matrix may overlap this workspace. With up to eight columns and rows that are not short (ExpertStream),
/// the results have the same bits as the results of separate products. With tiles, the rounding may differ from
/// separate products, because k may be divided into another number of parts. With one column, one launch computes all
/// products.
bool mul_mat_many_supports(std::span<Tensor* const> nodes, const GpuTraits& gpu);
void mul_mat_many_run(const LaunchContext& context, std::span<Tensor* const> nodes);
/// Returns the forms in which the kernels of these nodes read a record of b. The nodes are joined products with the
/// same b, or products of experts.
ColumnForms mul_mat_forms(std::span<Tensor* const> nodes, const GpuTraits& gpu);
/// Returns the products that these nodes compute, with the addends.
std::vector<JoinedProduct> joined_products(std::span<Tensor* const> nodes);

}  // namespace shoal::cuda
