// Sharding rules declare which axes of an op may be split. A rule is written like an einsum. A letter is a factor: an
// index that axes of the operands share.
//
//   mul_mat  "k m c/2 d, k n c d -> m n c d | sum k"     (on axis 2, source 0 has half as many batches as source 1)
//   rms_norm "(a) b c d -> (a) b c d"
//   get_rows "x [r] c d, i c d -> x i c d"
//   glu      "2*a b c d, - -> a b c d"                   (fused: source axis 0 is two copies of factor a)
//   attention"(d) t h z, (d) (s) h/2 z, (e) (s) h/2 z, t, -, - -> (e) h t z"
//   add      "a b c d, a 1 1 1 -> a b c d | linear 0+1"
//
// Grammar:
// - Commas separate operands. Spaces separate axes. A missing trailing axis is `1`.
// - `1` is an axis of length 1 without a factor (broadcast). `-` is an absent source.
// - A letter is a factor. `(a)` is a whole factor. `[r]` is a selected factor. `a/g` is an axis of length |a|/g, with
//   one element for each group of g elements of the factor. `n*a` is an axis with n consecutive copies of the factor.
// - `sum k ...` after `|` lists the summed factors.
// - `linear i j+k ...` after `|` lists the sources in which the op is linear. `i` means that the op is linear in source
//   i if all other sources are mirrored. `j+k` means that the op is linear in sources j and k jointly, like a sum.
// - A rule may have both lists: "| sum k | linear 0 1".
// - A letter has the same parentheses or brackets in all operands. An operand contains a letter at most once.
//
// Kinds of factor:
// - Parallel: the factor is split, and the op runs on the shards.
// - Summed: the factor is split, and the result is Partial.
// - Selected: the factor is split, and the op runs with the index ranges of the shard (SelectParams). For an index
//   outside these ranges, the op computes zeros, and the result is Partial. If the result also has the factor
//   (set_rows, set_slice), the op skips such an index instead.
// - Whole: the factor is never split.
//
// Example: mul_mat with k = 256 and m = 768 on 2 devices. If m is split as 512:{0} 256:{1}, source 0 must be split on
// axis 1 as 512:{0} 256:{1}, and source 1 must be mirrored. The result is split on axis 0 as 512:{0} 256:{1}. If k is
// split as 128:{0} 128:{1}, both sources must be split on axis 0 as 128:{0} 128:{1}. The result is Partial.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/tensor.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

enum class FactorKind : uint8_t { kParallel, kSummed, kSelected, kWhole };

struct Factor {
  char letter = 'a';
  FactorKind kind = FactorKind::kParallel;
  int64_t length = 0;
  int64_t unit = 1;  ///< a partition may cut the factor only at multiples of this number, so that no quantisation block
                     ///< of an operand is cut
};

/// Relation of one axis of an operand to a factor. If `factor` is -1, the axis has length 1 and cannot be split.
struct AxisTerm {
  int factor = -1;
  int64_t group = 1;   ///< axis length = factor length / group
  int64_t repeat = 1;  ///< axis length = factor length * repeat
  bool operator==(const AxisTerm&) const = default;
};

struct Operand {
  bool present = true;
  std::array<AxisTerm, kMaxDims> axes{};
};

struct Rule {
  std::vector<Factor> factors;
  std::vector<Operand> sources;
  Operand result;
  /// Each set contains the numbers of sources in which the op is jointly linear: {{0}, {1}} for mul, {{0, 1}} for add.
  std::vector<std::vector<int>> linear;

  int find(char letter) const;  ///< index in `factors`; -1 if no factor has the letter
  /// Returns the axis of the operand that has the factor, or -1 if the operand does not have the factor.
  static int axis_of(const Operand& operand, int factor);
};

/// Parses the text for a node, and takes the factor lengths from the shapes of the node. Throws InvalidArgument with
/// the name of the node if the text is malformed, if a letter has two different lengths, or if a letter is selected in
/// an op without index ranges.
Rule parse_rule(std::string_view text, const Tensor& node);
/// The text of a rule in normal form: trailing axes of `1` are omitted.
std::string to_string(const Rule& rule);

/// Returns the rule of a node as text, from the table in meta/rules/rules.cpp. Returns nullopt for an op without a
/// rule. Views and concat have no rule, because their layouts are computed directly from runs.
std::optional<std::string> rule_text(const Tensor& node);
/// The parsed rule of a node; nullopt if the node has no rule.
std::optional<Rule> rule_for(const Tensor& node);
/// True if the table has a rule for the op.
bool has_rule(Op op);
/// The planner calls this function to get the rule of a node as text. The function is rule_text(), or a function that
/// also knows other ops. The text may depend only on the node's op and parameters, and on the dtypes and shapes of the
/// node and its sources, because nodes with equal values share one call.
using RuleLookup = std::function<std::optional<std::string>(const Tensor& node)>;

/// Returns the layout that an operand needs if `factor` is split by `partition`. If the operand has the factor, the
/// layout is split on the axis that has the factor. The term of this axis groups or tiles the partition. If the operand
/// does not have the factor, the layout is mirrored. Returns nullopt if the factor is whole, if a cut is not at a
/// multiple of Factor::unit, or if Partition::group() returns nullopt.
std::optional<Layout> operand_layout(const Rule& rule, int factor, const Partition& partition, const Operand& operand);
/// A factor and the partition of this factor. factor_split() derives both from the layout of an operand. The function
/// returns nullopt if the layout is not split, if the split axis has no factor, if the factor is whole, or if the
/// layout's partition does not match the term of the axis or Factor::unit.
struct FactorSplit {
  int factor = -1;
  Partition partition;
};
std::optional<FactorSplit> factor_split(const Rule& rule, const Operand& operand, const Layout& layout);
/// Returns the layout of the result if `factor` is split by `partition`. If the result has the factor, this layout
/// is operand_layout() of the result. If the result does not have the factor, the layout is Partial. Returns nullopt in
/// this case if the factor is neither summed nor selected, or if the partition is not disjoint.
std::optional<Layout> result_layout(const Rule& rule, int factor, const Partition& partition);
/// Returns the parameters of the node on one device. For a selected factor, SelectParams and SetSliceParams contain
/// the device's index ranges. RepeatParams contains the shape of the device's shard. In a depthwise convolution, the
/// number of groups is the device's number of input channels.
OpParams local_params(const Tensor& node, const Rule& rule, int factor, const Partition& partition, int device);

}  // namespace shoal::meta
