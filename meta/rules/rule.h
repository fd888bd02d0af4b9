// Sharding rules declare which axes of an op may be split. A rule is written like an einsum, with one letter per
// factor.
//
//   mul_mat  "k m c/2 d, k n c d -> m n c d | sum k"     (source 0 has half the batches on axis 2)
//   rms_norm "(a) b c d -> (a) b c d"
//   get_rows "x [r] c d, i c d -> x i c d"
//   glu      "2*a b c d, - -> a b c d"                   (fused: source axis 0 is two copies of factor a)
//   attention"(d) t h z, (d) (s) h/2 z, (e) (s) h/2 z, t, -, - -> (e) h t z"
//   add      "a b c d, a 1 1 1 -> a b c d | linear 0+1"
//
// Grammar. Commas separate operands, spaces separate axes, and missing trailing axes are 1. `1` means that the factor
// is absent (length 1, broadcast); `-` means that the whole source is absent. A letter names a factor: `(a)` must stay
// whole (is never split), `[r]` is selected, `a/g` is an axis of length |a|/g (groups of g), and `n*a` is an axis of n
// repetitions of the factor, one after the other. After `|`, `sum k ...` lists summed factors, and `linear i j+k ...`
// lists sources in which the op is linear: `i` alone, if the other sources are mirrored or split in the same way, and
// `j+k` jointly, as for a sum. A rule may have both lists: "| sum k | linear 0 1". A letter has the same parentheses or
// brackets everywhere, and occurs once in an operand.
//
// Kinds of factor. Parallel: the factor is split and the op runs on the shards. Summed: the factor is split and the
// result is Partial. Selected: the factor is split and the op runs with the shard's index ranges (SelectParams).
// Indices outside these ranges give zeros (Partial). If the factor is also in the result (set_rows), such indices are
// skipped. Whole: the factor is never split.
//
// Example: mul_mat k = 256, m = 768 over 2 devices. For a split of m as 512:{0} 256:{1}, source 0 must be split 1
// [512 256] and source 1 mirrored. The result is split 0 [512 256]. For a split of k as 128 128, both sources must be
// split 0 [128 128]. The result is Partial.
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
  int64_t unit = 1;  ///< the length of a shard must be a multiple of this number, because of the quantisation blocks of
                     ///< an operand
};

/// Relation of one operand axis to a factor. factor == -1: the axis has length 1 and cannot be split.
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
  /// Sets of sources in which the op is linear: {{0}, {1}} for mul, {{0, 1}} for add.
  std::vector<std::vector<int>> linear;

  int find(char letter) const;  ///< factor index or -1
  /// The axis of the operand that has the factor, or -1.
  static int axis_of(const Operand& operand, int factor);
};

/// Parses the text for a node, and takes the factor lengths from the shapes of the node. Throws InvalidArgument with
/// the name of the node if the text is malformed, if two lengths of a letter differ, or if a letter is selected in an
/// op without index ranges.
Rule parse_rule(std::string_view text, const Tensor& node);
/// The text of a rule in normal form: trailing axes of `1` are omitted.
std::string to_string(const Rule& rule);

/// The rule of a node as text, from the table in meta/rules/rules.cpp. nullopt for an op without a rule, and for views
/// and concat, which work on runs directly.
std::optional<std::string> rule_text(const Tensor& node);
/// The parsed rule of a node.
std::optional<Rule> rule_for(const Tensor& node);
/// True if the table has a rule for the op.
bool has_rule(Op op);
/// The function from which the planner gets the rule of a node as text: rule_text(), or a function that also knows
/// other ops. The text may depend only on the node's op and parameters, and on the dtypes and shapes of the node and
/// its sources, because nodes with equal values share one call.
using RuleLookup = std::function<std::optional<std::string>(const Tensor& node)>;

/// The layout that an operand needs if `factor` is split by `partition`. This layout is split on the operand's axis
/// that has the factor. The partition is grouped or tiled according to the term of the axis. The layout is mirrored if
/// the operand does not have the factor. nullopt if the partition does not fit the operand (a cut inside a group or a
/// block, or a group mapping that is not uniform).
std::optional<Layout> operand_layout(const Rule& rule, int factor, const Partition& partition, const Operand& operand);
/// A factor and its partition, which follow from the layout of an operand. nullopt if the split axis has no factor, the
/// factor is whole, or the partition does not match the axis term.
struct FactorSplit {
  int factor = -1;
  Partition partition;
};
std::optional<FactorSplit> factor_split(const Rule& rule, const Operand& operand, const Layout& layout);
/// Layout of the result if `factor` is split by `partition`. The layout is Split if the result has the factor.
/// Otherwise the factor is summed or selected and the result is Partial; the partition must then be disjoint.
std::optional<Layout> result_layout(const Rule& rule, int factor, const Partition& partition);
/// The node's parameters on one device: SelectParams get the device's index ranges, and RepeatParams get the local
/// shape.
OpParams local_params(const Tensor& node, const Rule& rule, int factor, const Partition& partition, int device);

}  // namespace shoal::meta
