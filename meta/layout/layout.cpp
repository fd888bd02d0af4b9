#include "meta/layout/layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace shoal::meta {
namespace {

int64_t product(const Shape& shape, int begin, int end) {
  return std::accumulate(shape.begin() + begin, shape.begin() + end, int64_t{1}, std::multiplies<>());
}

/// The shortest partition P with P.tile(n) == partition for some n. If `partition` has a single run, P has length 1.
Partition smallest_period(const Partition& partition) {
  if (partition.runs().size() == 1) return partition.slice(0, 1);
  // A period contains at least one cut, so there are at most as many periods as runs.
  for (int64_t n = std::min<int64_t>(partition.length() / 2, partition.runs().size()); n > 1; --n) {
    if (auto period = partition.untile(n)) return *period;
  }
  return partition;
}

/// Owners of the flat index f of a tensor: pattern[(f / stride) % pattern.length()].
struct FlatPattern {
  int64_t stride = 1;
  Partition pattern;
};

FlatPattern flat_pattern(const Layout& layout, const Shape& shape) {
  FlatPattern flat{product(shape, 0, layout.axis), smallest_period(layout.partition)};
  if (flat.pattern.length() == 1) flat.stride = 1;  // all elements have the same owners
  return flat;
}

/// Returns the partition of axis `b` of `to` that gives every element the same owners as `flat`, or nullopt if no such
/// partition exists. Such a partition exists if the axis spans whole periods and no cut is inside an index of the axis.
std::optional<Partition> express(const FlatPattern& flat, const Shape& to, int b) {
  const int64_t inner = product(to, 0, b);
  const int64_t span = inner * to[b];
  const int64_t period = flat.stride * flat.pattern.length();
  if (span % period != 0) return std::nullopt;
  const std::span<const Run> runs = flat.pattern.runs();
  if (runs.empty() || runs.front().owners == runs.back().owners) {  // two repetitions of the pattern have no cut
                                                                    // between them, so one index may contain elements
                                                                    // of both repetitions
    return flat.pattern.scale_up(flat.stride).tile(span / period).scale_down(inner);
  }
  for (const Run& run : runs) {
    if (run.length * flat.stride % inner != 0) return std::nullopt;  // checked before the pattern is repeated
  }
  return flat.pattern.scale_up(flat.stride).scale_down(inner)->tile(span / period);
}

}  // namespace

const Owners* Layout::holders() const {
  return is_split() && partition.runs().size() == 1 ? &partition.runs()[0].owners : nullptr;
}

Shape Layout::local_shape(const Shape& global, int device) const {
  Shape local = global;
  if (is_split()) local[axis] = partition.local_length(device);
  return local;
}

std::string Layout::to_string() const {
  if (is_mirrored()) return "mirrored";
  if (is_partial()) return "partial";
  return fmt::format("split {} [{}]", axis, partition.to_string());
}

void check_layout(const Layout& layout, DType dtype, const Shape& shape, int devices, std::string_view what) {
  if (!layout.is_split()) return;
  require<InvalidArgument>(layout.axis >= 0 && layout.axis < kMaxDims, "{}: split axis {} is not in 0-{}", what,
                           layout.axis, kMaxDims - 1);
  const Partition& partition = layout.partition;
  require<InvalidArgument>(partition.devices() == devices, "{}: partition is for {} devices, expected {}", what,
                           partition.devices(), devices);
  require<InvalidArgument>(partition.length() == shape[layout.axis],
                           "{}: lengths on axis {} add up to {}, expected {} ({})", what, layout.axis,
                           partition.length(), shape[layout.axis], partition.to_string());
  if (layout.axis != 0) return;
  const int64_t block = traits(dtype).block_elems;
  int64_t at = 0;
  for (const Run& run : partition.runs()) {
    at += run.length;
    require<InvalidArgument>(at % block == 0,
                             "{}: axis 0 of type {} is cut at {}, which is not a multiple of the block size {}", what,
                             name_of(dtype), at, block);
  }
}

std::optional<Layout> reshape_layout(const Layout& layout, const Shape& from, const Shape& to) {
  if (!layout.is_split()) return layout;
  // A tensor without elements is mirrored, whatever its shape.
  if (product(to, 0, kMaxDims) == 0) return Layout::mirrored();
  const FlatPattern flat = flat_pattern(layout, from);
  const int64_t inner = product(from, 0, layout.axis);
  const int64_t end = inner * from[layout.axis];
  std::optional<Layout> best;
  int best_rank = 0;
  for (int b = kMaxDims - 1; b >= 0; --b) {
    // The search prefers the axis `layout.axis` if this axis has the same elements in both shapes. The second choice is
    // an axis that ends at the same element as the split axis of `from`. The last choice is any axis.
    const bool same_end = product(to, 0, b + 1) == end && to[b] > 1;
    const bool same_axis = product(to, 0, b + 1) == end && product(to, 0, b) == inner && b == layout.axis;
    const int rank = same_axis ? 3 : same_end ? 2 : 1;
    if (rank <= best_rank) continue;
    if (auto partition = express(flat, to, b)) {
      best = Layout::split(b, std::move(*partition));
      best_rank = rank;
    }
  }
  return best;
}

namespace {

/// Number of indices below `end` that the slice selects.
int64_t selected_before(const SliceParams& slice, int64_t end) {
  return end <= slice.begin ? 0 : std::min((end - slice.begin - 1) / slice.step + 1, slice.length);
}

/// The selected indices of one device, as a slice of its shard. Returns nullopt if they are not at equal distances.
std::optional<SliceParams> slice_of_shard(const Partition& partition, const SliceParams& global, int device) {
  SliceParams local = global;
  local.begin = local.length = 0;
  for (const OwnedRun& run : partition.owned_by(device)) {
    const int64_t before = selected_before(global, run.begin);
    const int64_t count = selected_before(global, run.begin + run.length) - before;
    if (count == 0) continue;
    const int64_t first = run.local_begin + global.begin + before * global.step - run.begin;
    if (local.length == 0) local.begin = first;
    if (first != local.begin + local.length * local.step) return std::nullopt;
    local.length += count;
  }
  return local;
}

}  // namespace

std::optional<Layout> slice_layout(const Layout& layout, const SliceParams& slice) {
  const auto [axis, begin, length, step] = slice;
  if (!layout.is_split(axis)) return layout;
  if (step == 1) return Layout::split(axis, layout.partition.slice(begin, length));
  const int devices = layout.partition.devices();
  for (int device = 0; device < devices; ++device) {
    if (!slice_of_shard(layout.partition, slice, device)) return std::nullopt;
  }
  std::vector<Run> runs;
  int64_t at = 0;
  for (const Run& run : layout.partition.runs()) {
    runs.push_back({selected_before(slice, at + run.length) - selected_before(slice, at), run.owners});
    at += run.length;
  }
  return Layout::split(axis, Partition(devices, std::move(runs)));
}

Layout permute_layout(const Layout& layout, const std::array<int, 4>& axes) {
  Layout result = layout;
  for (int i = 0; i < kMaxDims; ++i) {
    if (layout.is_split(axes[i])) result.axis = i;
  }
  return result;
}

SliceParams local_slice(const Layout& source, const SliceParams& global, int device) {
  if (!source.is_split(global.axis)) return global;
  if (global.step != 1) return slice_of_shard(source.partition, global, device).value();
  SliceParams local = global;
  local.begin = source.partition.slice(0, global.begin).local_length(device);
  local.length = slice_layout(source, global)->partition.local_length(device);
  return local;
}

namespace {

std::optional<Layout> exact_layout(const Tensor& view, const Layout& source) {
  switch (view.op) {
    case Op::kReshape:
      return reshape_layout(source, view.src[0]->shape, view.shape);
    case Op::kSlice:
      return slice_layout(source, std::get<SliceParams>(view.params));
    default:
      return permute_layout(source, std::get<PermuteParams>(view.params).axes);
  }
}

/// True if no cut of the layout is inside a quantisation block of the view.
bool is_storable(const Layout& layout, DType dtype) {
  const int64_t block = traits(dtype).block_elems;
  if (!layout.is_split(0) || block == 1) return true;
  const auto runs = layout.partition.runs();
  return std::all_of(runs.begin(), runs.end(), [&](const Run& run) { return run.length % block == 0; });
}

}  // namespace

std::optional<Layout> view_layout(const Tensor& view, const Layout& source) {
  if (!source.is_split()) return source;
  auto layout = exact_layout(view, source);
  if (layout && !is_storable(*layout, view.dtype)) layout.reset();
  return layout;
}

OpParams local_view_params(const Tensor& view, const Layout& source, const Layout& result, int rank) {
  if (view.op == Op::kReshape) return ReshapeParams{result.local_shape(view.shape, rank)};
  if (view.op == Op::kSlice) return local_slice(source, std::get<SliceParams>(view.params), rank);
  return view.params;
}

}  // namespace shoal::meta
