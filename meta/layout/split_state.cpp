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

/// Divides the axis by SplitState::ratio. On axis 0, no quantisation block is cut.
Partition divided(const SplitState& state, const Tensor& tensor, int devices) {
  const int axis = static_cast<int>(state.axis);
  const int64_t unit = axis == 0 ? traits(tensor.dtype).block_elems : 1, length = tensor.shape[axis];
  if (state.ratio->empty()) return Partition::even(devices, length / unit).scale_up(unit);
  require<InvalidArgument>(state.ratio->size() == static_cast<size_t>(devices),
                           "split state of {}: the ratio has length {}, expected {} (one number for each device)",
                           tensor.name, state.ratio->size(), devices);
  return Partition::by_ratio(length, unit, *state.ratio);
}

Partition partition_of(const SplitState& state, const Tensor& tensor, int devices) {
  if (state.partition) return *state.partition;
  if (state.ratio) return divided(state, tensor, devices);
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

SplitState SplitState::by_ratio(int axis, std::vector<double> ratio) {
  return {axis_of(axis), {}, {}, std::move(ratio)};
}

std::string SplitState::to_string() const {
  std::string text(name_of(axis));
  for (const auto& segment : segments) text += fmt::format(" {{{}}}", fmt::join(segment, ", "));
  if (partition) text += fmt::format(" [{}]", partition->to_string());
  if (ratio && !ratio->empty()) text += fmt::format(" by {}", fmt::join(*ratio, ":"));
  return text;
}

Layout to_layout(const SplitState& state, const Tensor& tensor, int devices) {
  const int axis = static_cast<int>(state.axis);
  require<InvalidArgument>(axis >= 0 && axis < static_cast<int>(kAxisNames.size()),
                           "split state of {}: there is no axis {}; expected 0-3, mirrored or partial", tensor.name,
                           axis);
  if (axis >= kMaxDims) {
    require<InvalidArgument>(state.segments.empty() && !state.partition && !state.ratio,
                             "split state of {}: {} takes no segments, partition or ratio", tensor.name,
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
  require<InvalidArgument>(!state.segments.empty() + state.partition.has_value() + state.ratio.has_value() <= 1,
                           "split state of {}: give only one of segments, partition and ratio", tensor.name);
  Layout layout = Layout::split(axis, partition_of(state, tensor, devices));
  check_layout(layout, tensor.dtype, tensor.shape, devices, "split state of " + tensor.name);
  return layout;
}

SplitStateCallback split_states(std::map<std::string, SplitState> states) {
  return [states = std::move(states)](const Tensor& tensor) {
    const auto found = states.find(tensor.name);
    return found == states.end() ? SplitState::mirrored() : found->second;
  };
}

ConstraintCallback constraints(std::map<std::string, Constraint> constraints) {
  return [constraints = std::move(constraints)](const Tensor& tensor) -> std::optional<Constraint> {
    const auto found = constraints.find(tensor.name);
    return found == constraints.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace shoal::meta
