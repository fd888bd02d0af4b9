#include "meta/meta.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace shoal::meta {
namespace {

constexpr std::array<std::string_view, 6> kAxisNames = {"axis 0", "axis 1", "axis 2", "axis 3", "mirrored", "partial"};

/// Text such as "192 + 58"; segments are separated by commas.
std::string sums_of(const std::vector<std::vector<int64_t>>& segments) {
  std::vector<std::string> parts;
  for (const auto& segment : segments) parts.push_back(fmt::format("{}", fmt::join(segment, " + ")));
  return fmt::format("{}", fmt::join(parts, ", "));
}

SplitAxis axis_of(int axis) {
  require<InvalidArgument>(axis >= 0 && axis < kMaxDims,
                           "split state: there is no axis {} to split; give 0 to 3, or SplitState::mirrored() or "
                           "partial()",
                           axis);
  return static_cast<SplitAxis>(axis);
}

Partition partition_of(const SplitState& state, const Tensor& tensor, int devices) {
  const int axis = static_cast<int>(state.axis);
  const int64_t length = tensor.shape[axis];
  std::vector<Run> runs;
  for (size_t s = 0; s < state.segments.size(); ++s) {
    const std::vector<int64_t>& segment = state.segments[s];
    require<InvalidArgument>(static_cast<int>(segment.size()) == devices,
                             "split state of {}: segment {} has {} lengths for {} devices", tensor.name, s,
                             segment.size(), devices);
    for (int d = 0; d < devices; ++d) {
      require<InvalidArgument>(segment[d] >= 0 && segment[d] <= length,
                               "split state of {}: segment {} gives device {} the length {}, but axis {} has length {}",
                               tensor.name, s, d, segment[d], axis, length);
      runs.push_back({segment[d], {d}});
    }
  }
  Partition partition(devices, std::move(runs));
  require<InvalidArgument>(partition.length() == length,
                           "split state of {}: segment lengths on axis {} add up to {}, expected {} ({})", tensor.name,
                           axis, partition.length(), length, sums_of(state.segments));
  return partition;
}

}  // namespace

std::string_view name_of(SplitAxis axis) {
  return kAxisNames.at(static_cast<size_t>(axis));
}

// Without this check, an invalid axis number could mean "mirrored" or "partial".
SplitState SplitState::split(int axis, std::vector<std::vector<int64_t>> segments) {
  return {axis_of(axis), std::move(segments), {}};
}

SplitState SplitState::split(int axis, Partition partition) {
  return {axis_of(axis), {}, std::move(partition)};
}

std::string SplitState::to_string() const {
  std::string text(name_of(axis));
  for (const auto& segment : segments) text += fmt::format(" {{{}}}", fmt::join(segment, ", "));
  if (partition) text += fmt::format(" [{}]", partition->to_string());
  return text;
}

Layout to_layout(const SplitState& state, const Tensor& tensor, int devices) {
  const int axis = static_cast<int>(state.axis);
  require<InvalidArgument>(axis >= 0 && axis < static_cast<int>(kAxisNames.size()),
                           "split state of {}: there is no axis {}; expected 0-3, mirrored or partial", tensor.name,
                           axis);
  if (axis >= kMaxDims) {
    require<InvalidArgument>(state.segments.empty() && !state.partition,
                             "split state of {}: {} takes no segments and no partition", tensor.name,
                             name_of(state.axis));
  }
  if (state.axis == SplitAxis::kMirrored) return Layout::mirrored();
  if (state.axis == SplitAxis::kPartial) {
    constexpr std::array kSummable = {DType::kF32, DType::kF16, DType::kBF16, DType::kI32};
    require<InvalidArgument>(std::find(kSummable.begin(), kSummable.end(), tensor.dtype) != kSummable.end(),
                             "split state of {}: partial needs f32, f16, bf16 or i32, but the tensor is {}",
                             tensor.name, shoal::name_of(tensor.dtype));
    return Layout::partial();
  }
  require<InvalidArgument>(state.segments.empty() || !state.partition,
                           "split state of {}: give segments or a partition, not both", tensor.name);
  Layout layout = Layout::split(axis, state.partition ? *state.partition : partition_of(state, tensor, devices));
  check_layout(layout, tensor.dtype, tensor.shape, devices, "split state of " + tensor.name);
  return layout;
}

}  // namespace shoal::meta
