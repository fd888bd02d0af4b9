// Sharding rules by brute force: every split that a rule allows is carried out on shards with the float64
// reference and compared with the op on whole tensors. Reported are
//
//   wrong rules     a split or a Partial source that the rule allows gives another result, or cannot run;
//   missing rules   something that the rule forbids gives the right result in every trial.
//
// Splits: each factor by the partitions of rule_partitions.h over 2 and 3 ranks. Partial sources: addends of 0.6 and
// 0.4 plus noise that cancels, so that neither symmetry nor homogeneity lets a wrong rule pass. A rule is validated
// for one node; the lengths of its axes should be 2 or more where something is to be divided.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "meta/rules/rule.h"

namespace shoal::test {

struct RuleFinding {
  Op op = Op::kNone;
  std::string what;  ///< "factor k", "linear 0", "linear 0+1"
  bool missing = false;
  std::string problem;  ///< the first trial that differs; of a missing rule, what would be right
  std::string node;     ///< the node as text
};
/// "mul_mat factor k is wrong: ... in %y = mul_mat(%a, %b)".
std::string to_string(const RuleFinding& finding);

struct RuleVerdict {
  std::vector<RuleFinding> findings;
  std::string exercised;  ///< letters of the factors that were really divided between ranks
};

/// `graph` has one node, whose sources are leaves.
RuleVerdict validate_rule(const Graph& graph, const meta::Rule& rule);

}  // namespace shoal::test
