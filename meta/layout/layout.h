// Layout: how a tensor is distributed over the mesh.
// - Mirrored: every device has the whole tensor, with equal bits.
// - Partial: every device has an addend of the full shape; the value is the sum in rank order.
// - Split: the devices divide one axis by a partition.
//
//   f32 [256, 8] Split axis 1 by 6:{0} 2:{1}: device 0 holds [256, 6], and device 1 holds [256, 2].
//   A device that owns nothing holds a tensor of length 0 on the split axis.
//
// Exact arithmetic on runs gives the layout of a reshape, slice or permute. nullopt means that no layout expresses the
// result, so the tensor must be redistributed first. Layouts are values and thread-safe.
#pragma once

#include <optional>
#include <string>

#include "graph/tensor.h"
#include "meta/layout/partition.h"

namespace shoal::meta {

enum class LayoutKind : uint8_t { kMirrored, kPartial, kSplit };

struct Layout {
  LayoutKind kind = LayoutKind::kMirrored;
  int axis = -1;        ///< set only for kSplit
  Partition partition;  ///< set only for kSplit

  static Layout mirrored() { return {}; }
  static Layout partial() { return {LayoutKind::kPartial, -1, {}}; }
  static Layout split(int axis, Partition partition) { return {LayoutKind::kSplit, axis, std::move(partition)}; }

  bool is_mirrored() const { return kind == LayoutKind::kMirrored; }
  bool is_partial() const { return kind == LayoutKind::kPartial; }
  bool is_split() const { return kind == LayoutKind::kSplit; }
  bool is_split(int on_axis) const { return is_split() && axis == on_axis; }
  bool operator==(const Layout&) const = default;

  /// The owners of the tensor if the layout is a split into one run; otherwise nullptr. In such a split, each device
  /// holds either the whole tensor or nothing. The shards are then the same for every split axis: [32, 1] split 0
  /// [32:{0,2}] has the same shards as split 1 [1:{0,2}].
  const Owners* holders() const;
  /// Shape of a device's shard.
  Shape local_shape(const Shape& global, int device) const;
  /// "mirrored", "partial", "split 1 [6:{0} 2:{1}]".
  std::string to_string() const;
};

/// Throws InvalidArgument unless the partition fits the axis. On axis 0 of a quantised dtype, every run must also be a
/// whole number of blocks. `what` names the tensor in the message.
void check_layout(const Layout& layout, DType dtype, const Shape& shape, int devices, std::string_view what);

/// Parses a layout of a tensor: "mirrored"; "axis 1" for an even division, on axis 0 of a quantised dtype in whole
/// blocks; "axis 1 [3:{0} 2:{1}]", or "split 1 [3:{0} 2:{1}]" as plans print it. With one device, the result is
/// mirrored. Throws InvalidArgument if the text does not fit the tensor. `what` starts the message: "[reshard y]".
Layout parse_layout(std::string_view text, const Tensor& tensor, int devices, std::string_view what);
/// The layout of a reshard node.
Layout layout_of_reshard(const Tensor& node, int devices);

/// Layout of a reshaped view. The viewed tensor has the layout `layout`.
///   [32, 8] split 1 [6:{0} 2:{1}] reshaped to [256]  -> split 0 [192:{0} 64:{1}]
///   [256] split 0 [100:{0} 156:{1}] reshaped to [32, 8] -> nullopt
std::optional<Layout> reshape_layout(const Layout& layout, const Shape& from, const Shape& to);
/// Layout of a slice. Returns nullopt if a device's selected indices are not at equal distances in its shard.
///   8 rows split 1 [6:{0} 2:{1}], rows 1, 4, 7 (step 3) -> split 1 [2:{0} 1:{1}]; rank 0 takes its rows 1 and 4, and
///   rank 1 takes its row 1
///   8 rows split 1 [1:{0} 1:{1} 6:{0}], rows 0, 2, 4, 6 -> nullopt: rank 0 has these rows as 0, 1, 3, 5
std::optional<Layout> slice_layout(const Layout& layout, const SliceParams& slice);
Layout permute_layout(const Layout& layout, const std::array<int, 4>& axes);
/// Converts the slice `global` of the source to the coordinates of a device's shard. slice_layout() must allow it.
SliceParams local_slice(const Layout& source, const SliceParams& global, int device);

/// Layout of a reshape, slice or permute (not of a reshard) whose source has layout `source`. Returns nullopt if no
/// layout can express and store the result, for example if a cut is inside an element of the view. In this case, the
/// source must be redistributed first.
///   [32, 8] split 1 [6:{0} 2:{1}], its rows 4-7 (slice of axis 1): split 1 [2:{0} 2:{1}]; rank 0 takes rows 4-5 of its
///   6 rows, and rank 1 takes both of its rows
std::optional<Layout> view_layout(const Tensor& view, const Layout& source);

/// Parameters of the op that converts a rank's shard of the source into its shard of the view. `result` is the layout
/// of the view. A reshape needs a shard without gaps.
OpParams local_view_params(const Tensor& view, const Layout& source, const Layout& result, int rank);

}  // namespace shoal::meta
