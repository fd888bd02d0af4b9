// Layout: how a tensor lies over the mesh. Mirrored (every device has all of it, bit for bit), Partial (every
// device has an addend of the full shape; the value is the sum in rank order) or Split (one axis, a partition).
//
//   f32 [256, 8] Split axis 1 by 6:{0} 2:{1}: device 0 holds [256, 6], device 1 [256, 2].
//   A device that owns nothing holds a tensor of length 0 on that axis.
//
// Reshape, slice and permute of a layout are exact arithmetic on runs; nullopt = not expressible, the
// tensor must be redistributed first. Values, thread-safe.
#pragma once

#include <optional>
#include <string>

#include "graph/tensor.h"
#include "meta/layout/partition.h"

namespace shoal::meta {

enum class LayoutKind : uint8_t { kMirrored, kPartial, kSplit };

struct Layout {
  LayoutKind kind = LayoutKind::kMirrored;
  int axis = -1;        ///< kSplit only
  Partition partition;  ///< kSplit only

  static Layout mirrored() { return {}; }
  static Layout partial() { return {LayoutKind::kPartial, -1, {}}; }
  static Layout split(int axis, Partition partition) { return {LayoutKind::kSplit, axis, std::move(partition)}; }

  bool is_mirrored() const { return kind == LayoutKind::kMirrored; }
  bool is_partial() const { return kind == LayoutKind::kPartial; }
  bool is_split() const { return kind == LayoutKind::kSplit; }
  bool is_split(int on_axis) const { return is_split() && axis == on_axis; }
  bool operator==(const Layout&) const = default;

  /// The devices that hold all of it, when no device holds a part: split into one run. nullptr otherwise. On which axis
  /// such a tensor is split makes no difference to any memory: [32, 1] split 0 [32:{0,2}] is split 1 [1:{0,2}].
  const Owners* holders() const;
  /// Shape of a device's shard.
  Shape local_shape(const Shape& global, int device) const;
  /// "mirrored", "partial", "split 1 [6:{0} 2:{1}]".
  std::string to_string() const;
};

/// Throws InvalidArgument unless the partition fits the axis and, on axis 0 of a quantised dtype, every run
/// is a whole number of blocks. `what` names the tensor in the message.
void check_layout(const Layout& layout, DType dtype, const Shape& shape, int devices, std::string_view what);

/// Layout of the result of a view of a tensor that lies as `layout`.
///   [32, 8] split 1 [6:{0} 2:{1}] reshaped to [256]  -> split 0 [192:{0} 64:{1}]
///   [256] split 0 [100:{0} 156:{1}] reshaped to [32, 8] -> nullopt
std::optional<Layout> reshape_layout(const Layout& layout, const Shape& from, const Shape& to);
Layout slice_layout(const Layout& layout, int axis, int64_t begin, int64_t length);
Layout permute_layout(const Layout& layout, const std::array<int, 4>& axes);
/// The begin and length in a device's shard of the source of a slice of the whole.
SliceParams local_slice(const Layout& source, const SliceParams& global, int device);

/// Of a reshape, slice or permute whose source lies as `source`; nullopt when that cannot be said or stored: if a cut
/// falls inside an element of the view, the source must be redistributed first.
///   [32, 8] split 1 [6:{0} 2:{1}], its rows 4-7 (slice of axis 1): split 1 [2:{0} 2:{1}]; rank 0 takes rows 4-5 of its
///   6, rank 1 its two
std::optional<Layout> view_layout(const Tensor& view, const Layout& source);

/// The parameters that make a rank's shard of the view (which lies as `result`) from its shard of the source. A reshape
/// needs that without gaps.
OpParams local_view_params(const Tensor& view, const Layout& source, const Layout& result, int rank);

}  // namespace shoal::meta
