// mul_mat with many columns (prompts). Results are computed in tiles. If `a`'s dtype allows it, the tiles use tensor
// cores. docs/cuda_kernels.md explains the tiles, the arithmetic of each dtype and the expected speed. Any number of
// columns is supported, but other kernels are faster for few columns. Results depend only on shapes, dtypes and the
// properties of the GPU.
#pragma once

#include <span>

#include "devices/cuda/ops/mul_mat_fused.h"

namespace shoal::cuda {

bool mul_mat_tiles_supports(const Tensor& node);
void mul_mat_tiles_run(const LaunchContext& context, Tensor& node);
size_t mul_mat_tiles_workspace(const Tensor& node, const GpuTraits& gpu);

/// Whether tiles on tensor cores compute the product. The f32 kernel cannot apply a gate, bias or residual, and it
/// cannot use columns that another product has converted.
bool mul_mat_tiles_can_join(const Tensor& node);
/// Whether two products with the same b need the columns of b in the same form.
bool mul_mat_tiles_same_columns(const Tensor& node, const Tensor& other);
/// Runs products with the same b that need the columns of b in the same form. The columns are converted once, in the
/// workspace of the last product. No tensor may overlap the converted columns. If a tensor overlaps the sums of parts
/// of k in the workspace, k is not divided. Products with matrices of one type run in one launch if one launch is
/// expected to be faster than separate launches. A product with `up` must be the only product. JoinedProduct::node must
/// be set.
void mul_mat_tiles_run_joined(const LaunchContext& context, std::span<const JoinedProduct> products, GluKind glu = {});

/// The (expert slot, token) pairs of a mul_mat_id, sorted by expert and divided into groups. A tile computes the
/// columns of one group.
struct SortedPairs {
  ColumnGroup* groups;
  int32_t *group_count, *order;  ///< order: the indices of the sorted pairs
};
struct TileGroups {
  int columns;   ///< largest number of columns of a group, a power of two
  size_t bytes;  ///< size of the workspace, in bytes
};
TileGroups mul_mat_tiles_groups(const Tensor& node, const GpuTraits& gpu);
/// Runs `product` on the groups of `pairs`. `node` is the mul_mat_id node of the product. The product contains the
/// matrices of all experts of this device.
void mul_mat_tiles_run_groups(const LaunchContext& context, const Tensor& node, const JoinedProduct& product,
                              GluKind glu, const SortedPairs& pairs, std::byte* workspace);

/// The division of a product into tiles.
struct TileChoice {
  bool warpgroups = false;  ///< whether the kernel uses the instructions of compute capability 9.0
  int columns = 0;          ///< number of columns per tile; 0: the f32 kernel is used
  int parts = 1;            ///< number of parts of k
};
TileChoice mul_mat_tiles_choice(const Tensor& node, const GpuTraits& gpu);

}  // namespace shoal::cuda
