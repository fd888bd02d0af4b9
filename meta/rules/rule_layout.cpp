// Computes the layouts of a node's operands, and its local parameters, from the partition of one factor. Example: in
// the mul_mat "k m c/2 d, k n c d -> m n c d", source 1 has 8 heads and source 0 has 4 heads on axis 2. If c is split
// as 6:{0} 2:{1}, source 0 is split on axis 2 as 3:{0} 1:{1}. Source 1 and the result are split on axis 2 as 6:{0}
// 2:{1}.
#include <algorithm>

#include "base/error.h"
#include "meta/rules/rule.h"

namespace shoal::meta {
namespace {

/// Returns the partition of an axis whose factor has the partition `factor`. The term `n*a` tiles `factor`, and the
/// term `a/g` groups `factor`.
std::optional<Partition> axis_partition(const AxisTerm& term, const Partition& factor) {
  if (term.group == 1) return factor.tile(term.repeat);
  const auto groups = factor.group(term.group);
  return groups ? std::optional(groups->tile(term.repeat)) : std::nullopt;
}

/// True if every cut is at a multiple of `unit`.
bool fits_unit(const Partition& partition, int64_t unit) {
  int64_t at = 0;
  for (const Run& run : partition.runs()) {
    at += run.length;
    if (at % unit != 0 && at != partition.length()) return false;
  }
  return true;
}

/// The number of groups of a convolution; nullptr for other ops.
int64_t* groups_of(OpParams& params) {
  if (auto* conv = std::get_if<ConvParams>(&params)) return &conv->groups;
  auto* transposed = std::get_if<ConvTransposeParams>(&params);
  return transposed == nullptr ? nullptr : &transposed->groups;
}

/// Appends the rows [begin, begin + length) to `ranges`. Adjacent ranges are merged.
void append(std::vector<IndexRange>& ranges, int64_t begin, int64_t length) {
  if (length == 0) return;
  if (!ranges.empty() && ranges.back().begin + ranges.back().length == begin) {
    ranges.back().length += length;
  } else {
    ranges.push_back({begin, length});
  }
}

/// Returns the global indices of a device's rows. `global` contains the global indices of all rows. An empty list means
/// that row i has index i. So the list of a device without rows is not empty, but contains a range of length 0.
std::vector<IndexRange> local_ranges(const std::vector<IndexRange>& global, const Partition& rows, int device) {
  if (rows.local_length(device) == rows.length()) return global;
  std::vector<IndexRange> ranges;
  for (const OwnedRun& run : rows.owned_by(device)) {
    if (global.empty()) append(ranges, run.begin, run.length);
    int64_t row = 0;
    for (const IndexRange& range : global) {
      const int64_t from = std::max(row, run.begin);
      const int64_t to = std::min(row + range.length, run.begin + run.length);
      if (from < to) append(ranges, range.begin + from - row, to - from);
      row += range.length;
    }
  }
  if (ranges.empty()) ranges.push_back({0, 0});
  return ranges;
}

}  // namespace

std::optional<Layout> operand_layout(const Rule& rule, int factor, const Partition& partition, const Operand& operand) {
  const Factor& split = rule.factors.at(factor);
  check(partition.length() == split.length, "factor {} has length {}, but its partition has length {}", split.letter,
        split.length, partition.length());
  if (split.kind == FactorKind::kWhole || !fits_unit(partition, split.unit)) return std::nullopt;
  const int axis = Rule::axis_of(operand, factor);
  if (axis < 0) return Layout::mirrored();
  auto along = axis_partition(operand.axes[axis], partition);
  if (!along) return std::nullopt;
  return Layout::split(axis, std::move(*along));
}

std::optional<FactorSplit> factor_split(const Rule& rule, const Operand& operand, const Layout& layout) {
  if (!layout.is_split() || !operand.present) return std::nullopt;
  const AxisTerm& term = operand.axes[layout.axis];
  if (term.factor < 0) return std::nullopt;
  const Factor& factor = rule.factors[term.factor];
  const auto once = layout.partition.untile(term.repeat);
  if (factor.kind == FactorKind::kWhole || !once) return std::nullopt;
  Partition partition = once->scale_up(term.group);
  if (!fits_unit(partition, factor.unit)) return std::nullopt;
  return FactorSplit{term.factor, std::move(partition)};
}

std::optional<Layout> result_layout(const Rule& rule, int factor, const Partition& partition) {
  if (Rule::axis_of(rule.result, factor) >= 0) return operand_layout(rule, factor, partition, rule.result);
  const FactorKind kind = rule.factors.at(factor).kind;
  const bool sums = kind == FactorKind::kSummed || kind == FactorKind::kSelected;
  if (!sums || !partition.is_disjoint()) return std::nullopt;
  return Layout::partial();
}

OpParams local_params(const Tensor& node, const Rule& rule, int factor, const Partition& partition, int device) {
  OpParams params = node.params;
  if (rule.factors.at(factor).kind == FactorKind::kSelected) {
    auto* select = std::get_if<SelectParams>(&params);
    std::vector<IndexRange>& ranges = select ? select->ranges : std::get<SetSliceParams>(params).ranges;
    ranges = local_ranges(ranges, partition, device);
  }
  if (auto* repeat = std::get_if<RepeatParams>(&params)) {
    const auto result = result_layout(rule, factor, partition);
    check(result.has_value(), "{} has no local parameters: its result cannot be split", node.name);
    repeat->shape = result->local_shape(repeat->shape, device);
  }
  if (int64_t* groups = groups_of(params); groups && *groups != 1 && Rule::axis_of(rule.sources[1], factor) == 2) {
    const auto channels = operand_layout(rule, factor, partition, rule.sources[1]);
    check(channels.has_value(), "{} has no local parameters: its channels cannot be split", node.name);
    *groups = channels->local_shape(node.src[1]->shape, device)[2];
  }
  return params;
}

}  // namespace shoal::meta
