// Sharding rules as factors: what may be split in an op, declared like an einsum with one letter per factor.
//
//   mul_mat  "k m c/2 d, k n c d -> m n c d | sum k"     (source 0 has half the batches on axis 2)
//   rms_norm "(a) b c d -> (a) b c d"
//   get_rows "x [r] c d, i c d -> x i c d"
//   glu      "2*a b c d, - -> a b c d"                   (fused: source axis 0 is two copies of factor a)
//   attention"(d) t h z, (d) (s) h/2 z, (e) (s) h/2 z, t, -, - -> (e) h t z"
//   add      "a b c d, a 1 1 1 -> a b c d | linear 0+1"
//
// Grammar. Operands are separated by commas, axes by spaces, missing trailing axes are 1. `1` = the factor is
// absent (length 1, broadcast), `-` = the whole source is absent. A letter names a factor; `(a)` marks it whole
// (must not be split), `[r]` selected; `a/g` an axis of length |a|/g (groups of g), `n*a` an axis that is n
// repetitions of the factor one after the other. After `|`: `sum k ...` summed factors; `linear i j+k ...`
// sources in which the op is linear: `i` alone (others mirrored or split alike), `j+k` jointly (a sum). Both:
// "| sum k | linear 0 1". A letter has the same mark wherever it stands and stands once in an operand.
//
// Kinds of factor. Parallel: split it and run the op on the shards. Summed: split it and the result is
// Partial. Selected: split it and run with the shard's index ranges (SelectParams); foreign indices give zeros
// (Partial), or are skipped when the factor stands in the result too (set_rows). Whole: never split.
// Worked example, mul_mat k = 256, m = 768 over 2 devices: splitting m as 512:{0} 256:{1} needs source 0
// split 1 [512 256] and source 1 mirrored, gives split 0 [512 256]; splitting k as 128 128 needs
// both sources split 0 [128 128] and gives Partial.
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
  int64_t unit = 1;  ///< shards must be a multiple of this (quantisation blocks of an operand)
};

/// How one axis of an operand relates to a factor. factor == -1: length 1, nothing to split.
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
  /// Axis of the operand on which the factor stands, or -1.
  static int axis_of(const Operand& operand, int factor);
};

/// Parses the text for a node and fills in the factor lengths from its shapes. Throws InvalidArgument, naming the node,
/// when the text is malformed, the lengths of a letter disagree, or it selects in an op without index ranges.
Rule parse_rule(std::string_view text, const Tensor& node);
/// The text form again, in normal form: trailing axes of `1` are left out.
std::string to_string(const Rule& rule);

/// The rule of a node from the table in meta/rules/rules.cpp, as text; nullopt for an op without one (and
/// for views and concat, which work on runs directly).
std::optional<std::string> rule_text(const Tensor& node);
/// The same, parsed.
std::optional<Rule> rule_for(const Tensor& node);
/// Does the table have a rule for this op?
bool has_rule(Op op);
/// Where the planner takes the texts of rules from: rule_text, or a table with other ops. A function of the node's op
/// and parameters, and of its and its sources' dtypes and shapes: it is asked once for nodes in which these are equal.
using RuleLookup = std::function<std::optional<std::string>(const Tensor& node)>;

/// What splitting `factor` by `partition` asks of an operand: split on the operand's axis (grouped or tiled as
/// its term says), or mirrored when the factor is not in it. nullopt when the partition does not fit the
/// operand (a cut inside a group, a block, or a group mapping that is not uniform).
std::optional<Layout> operand_layout(const Rule& rule, int factor, const Partition& partition, const Operand& operand);
/// The factor partition that an operand split on `axis` as `partition` suggests; nullopt when that axis has no
/// factor, the factor is whole, or the partition does not have the term's form.
struct FactorSplit {
  int factor = -1;
  Partition partition;
};
std::optional<FactorSplit> factor_split(const Rule& rule, const Operand& operand, const Layout& layout);
/// Layout of the result when `factor` is split by `partition`: Split, or Partial for summed factors and for
/// selected ones that are not in the result. A summed or such a selected factor needs a disjoint partition.
std::optional<Layout> result_layout(const Rule& rule, int factor, const Partition& partition);
/// The node's parameters on one device: SelectParams get the device's ranges, sizes become local ones.
OpParams local_params(const Tensor& node, const Rule& rule, int factor, const Partition& partition, int device);

}  // namespace shoal::meta
