// The split-state callback: the user's word on how each statically allocated tensor (weights, KV cache) lies.
// It is asked when the tensor is placed, and its answer holds as long as the tensor lies there. The plain answer is an
// axis and a list of segments, each with one length per device; a richer answer gives the runs with their owners.
//
//   attn_q [256, 256] over 2 devices, 3:1 in heads of 32 rows:  axis 1, segments {{192, 64}}
//   fused qkv [256, 512] (256 + 128 + 128 rows), even:          axis 1, segments {{128,128}, {64,64}, {64,64}}
//   attn_k [256, 128], 4 KV heads shared by 8 devices:           axis 1, partition "32:{0,1} 32:{2,3} ..."
//
// Answers are checked at once; a bad one throws InvalidArgument that names the tensor and the sums.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meta/layout/layout.h"

namespace shoal::meta {

enum class SplitAxis : int8_t { k0 = 0, k1 = 1, k2 = 2, k3 = 3, kMirrored = 4, kPartial = 5 };
/// "axis 0", ..., "mirrored", "partial".
std::string_view name_of(SplitAxis axis);

struct SplitState {
  SplitAxis axis = SplitAxis::kMirrored;
  /// For an axis: segments[s][d] = elements of segment s that device d gets; a segment's runs come in device order.
  std::vector<std::vector<int64_t>> segments;
  /// Instead of segments: any runs with any owners.
  std::optional<Partition> partition;

  static SplitState mirrored() { return {}; }
  static SplitState partial() { return {SplitAxis::kPartial, {}, {}}; }
  /// Throws InvalidArgument when the axis is none of 0 to 3.
  static SplitState split(int axis, std::vector<std::vector<int64_t>> segments);
  static SplitState split(int axis, Partition partition);
  /// "axis 1 {128, 128} {64, 64}", "axis 1 [32:{0,1} 32:{2,3}]", "mirrored".
  std::string to_string() const;
};

/// What the user supplies.
using SplitStateCallback = std::function<SplitState(const Tensor& tensor)>;
/// The C form of the same.
using SplitStateFunction = SplitState (*)(const Tensor& tensor, void* user);
SplitStateCallback make_callback(SplitStateFunction function, void* user);

/// Checks an answer for a tensor on `devices` devices and turns it into a layout. Throws InvalidArgument:
/// "split state of blk.0.attn_q: segment lengths on axis 1 add up to 250, expected 256 (192 + 58)".
/// Checked: axis in range, one length per device, none negative, sums, whole quantisation blocks on axis 0,
/// Partial only for f32, f16, bf16 and i32 (not for caches of quantised type), owners in range.
Layout to_layout(const SplitState& state, const Tensor& tensor, int devices);

}  // namespace shoal::meta
