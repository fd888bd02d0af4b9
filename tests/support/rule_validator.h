// Validates sharding rules by brute force: for every split that a rule allows, the float64 reference computes the op on
// shards, and the result is compared with the op on whole tensors. It reports
//
//   wrong rules     a split or a Partial source that the rule allows gives a wrong result, or cannot run;
//   missing rules   a split or a Partial source that the rule forbids gives the right result in every trial.
//
// Each factor is split by the partitions of rule_partitions.h over 2 and 3 ranks. Addends of Partial sources are 0.6
// and 0.4 of the value plus noise that cancels, so that no wrong rule passes by symmetry or homogeneity. A rule is
// validated for one node; axes that a trial divides should have length 2 or more.
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
  std::string problem;  ///< the first trial with a wrong result; for a missing rule, the property that the rule could
                        ///< claim
  std::string node;     ///< the node as text
};
/// "mul_mat factor k is wrong: ... in %y = mul_mat(%a, %b)".
std::string to_string(const RuleFinding& finding);

struct RuleVerdict {
  std::vector<RuleFinding> findings;
  std::string exercised;  ///< letters of the factors that trials actually divided between ranks
};

/// `graph` has one node; its sources are leaves.
RuleVerdict validate_rule(const Graph& graph, const meta::Rule& rule);

}  // namespace shoal::test
