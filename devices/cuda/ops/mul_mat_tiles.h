// mul_mat with many columns (prompts): products of tiles, on tensor cores where the dtype of a allows. How tiles are
// made, their arithmetic by dtype and how fast they should be: docs/cuda_tiles.md.
//
// Any number of columns is right; few are faster elsewhere. Results depend on shapes, dtypes and the kind of GPU only.
#pragma once

#include <span>

#include "devices/cuda/ops/mul_mat_fused.h"

namespace shoal::cuda {

bool mul_mat_tiles_supports(const Tensor& node);
void mul_mat_tiles_run(const LaunchContext& context, Tensor& node);
size_t mul_mat_tiles_workspace(const Tensor& node, const GpuTraits& gpu);

/// The product is made of tiles on tensor cores, which can apply a gate, bias or residual and take converted columns.
bool mul_mat_tiles_can_join(const Tensor& node);
/// Products of one b take its columns in the same form.
bool mul_mat_tiles_same_columns(const Tensor& node, const Tensor& other);
/// Products of one b with the same form of columns, which are converted once, in the workspace of the last one. Nothing
/// else may be where columns are; parts of k are not used if something is where they would be. Products of one type
/// run as one launch if that is expected to be faster. A product with `up` is the only one. Needs their nodes.
void mul_mat_tiles_run_joined(const LaunchContext& context, std::span<const JoinedProduct> products, GluKind glu = {});

/// mul_mat_id of many (slot, token) pairs, which are sorted by expert and divided into groups: a tile takes the columns
/// of one group.
struct SortedPairs {
  ColumnGroup* groups;
  int32_t *group_count, *order;  ///< order: pairs
};
struct TileGroups {
  int columns;   ///< of a group at most, a power of two
  size_t bytes;  ///< of workspace
};
TileGroups mul_mat_tiles_groups(const Tensor& node, const GpuTraits& gpu);
/// `product` is that of the node; its matrices are those of all experts.
void mul_mat_tiles_run_groups(const LaunchContext& context, const Tensor& node, const JoinedProduct& product,
                              GluKind glu, const SortedPairs& pairs, std::byte* workspace);

/// How a product is divided.
struct TileChoice {
  bool warpgroups = false;  ///< it takes the instructions that only compute capability 9.0 has
  int columns = 0;          ///< of a tile; 0: f32
  int parts = 1;            ///< of k
};
TileChoice mul_mat_tiles_choice(const Tensor& node, const GpuTraits& gpu);

}  // namespace shoal::cuda
