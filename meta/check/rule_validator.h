// Validates sharding rules by brute force. For every split that a rule allows, a reference computes the op on shards.
// Tests use a float64 reference. check_op() uses the CPU kernel of the op. The validator compares the result with the
// result of the op on whole tensors, and reports
//
//   wrong rules     the rule allows a split or a Partial source that gives a wrong result or cannot run;
//   missing rules   the rule forbids a split or a Partial source that gives the right result in every trial.
//
// Each factor is divided among 2 and 3 ranks, or the given numbers of ranks, by the partitions of partitions.h. The
// addends of Partial sources are fractions of the value such as 0.6 and 0.4, plus noise that cancels in the sum. If the
// addends were equal, or proportional to the value, a wrong rule could pass. A rule is validated for one node. Axes
// that a trial divides should have at least two elements.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "meta/check/rule_trial.h"
#include "meta/rules/rule.h"

namespace shoal::meta {

struct RuleFinding {
  Op op = Op::kNone;
  std::string what;  ///< the tested claim: "factor k", "linear 0" or "linear 0+1"
  bool missing = false;
  std::string remedy;   ///< change of the rule: "write (k) in every operand"
  std::string problem;  ///< the first trial with a wrong result, or the property that a missing rule could claim
  std::string node;     ///< the node as text
};
/// Returns a text such as "mul_mat factor k is wrong: ... in %y = mul_mat(%a, %b)".
std::string to_string(const RuleFinding& finding);

struct RuleVerdict {
  std::vector<RuleFinding> findings;
  std::string exercised;  ///< letters of the factors that at least one trial divided among ranks
};

/// `graph` must have one node. All sources of the node must be leaves.
RuleVerdict validate_rule(const Graph& graph, const Rule& rule, const Reference& reference,
                          const std::vector<int>& ranks = {2, 3});

}  // namespace shoal::meta
