// check_op() checks a registered external op (graph/external_op.h) with example graphs. The checks need no devices.
//
//   const OpReport report = check_op("gain", {{"input %x f32 [6, 4]\ninput %w f32 [6]\n"
//                                              "%y = external(%x, %w) {op=\"gain\"}"}});
//   if (!report.is_correct()) fail(to_string(report));
//
// The checks, for each example:
// - Shape inference accepts the node, and the op has a CPU kernel for the node.
// - The CPU kernel writes each element of the result in exactly one part. The bytes of the result do not depend on the
//   number of parts. The kernel changes neither its sources nor memory outside the result and the workspace.
// - The rule holds: every factor that the rule may split is divided among 2, 3 and 4 ranks, evenly, unevenly, and with
//   ranks that have no elements. The CPU kernel computes each shard. The joined shards must equal the unsharded result.
//   Addends of partial sources are fractions such as 0.6 and 0.4 of the value, plus noise that cancels in the sum.
// - The rule is complete: a whole factor that could be split is an improvement, as is a source that could be linear.
//   This check is omitted if a source has integers, because they could be ids that are out of the range of a shard.
//
// Axes of the examples should have 2 to 9 elements. A trial cannot divide an axis of length 1, and the number of
// trials grows with the lengths. An op without a rule is correct: a meta device gathers its sources.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace shoal {

/// An example: a graph with one node of the op. The sources of the node are inputs, weights or caches.
struct OpCase {
  std::string graph;  ///< text (graph/text.h); not used if `build` is set
  std::function<void(Graph& graph, TensorContext& weights)> build = {};
  /// Values of leaves by name, in the order of a contiguous tensor. Other leaves get random values: floats in [-1, 1],
  /// integers in [0, 3].
  std::map<std::string, std::vector<double>> values = {};
};

struct OpFinding {
  enum class Kind {
    kError,        ///< the op gives wrong results or cannot run
    kImprovement,  ///< results are correct, but a meta device could split more
    kUntested,     ///< no example divides a factor of the rule
  };
  Kind kind = Kind::kError;
  std::string what;     ///< the checked part: "inference", "CPU kernel", "rule", "factor k" or "linear 0"
  std::string problem;  ///< for example "'k' split [2:{0} 1:{1}]: element [1] is 0.5, expected 1.25"
  std::string remedy;
  std::string node;  ///< the node as text; "" for kUntested
};

struct OpReport {
  std::string op;
  std::vector<OpFinding> findings;
  bool has_rule = false;  ///< whether the op has a rule for at least one example
  /// Whether no finding is an error.
  bool is_correct() const;
};
/// One line for each finding, or "op 'gain' is correct", with a note if the op has no rule. Lines have no final line
/// end.
std::string to_string(const OpReport& report);

struct CheckOptions {
  std::vector<int> ranks{2, 3, 4};
  double f32_tolerance = 1e-4;  ///< allowed difference of f32 results, relative to 1 + |expected|
};

/// Throws InvalidArgument if the op is not registered, or if an example is not a graph with one node of this op.
OpReport check_op(std::string_view name, const std::vector<OpCase>& cases, const CheckOptions& options = {});

}  // namespace shoal
