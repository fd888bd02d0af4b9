// The nodes with which the rule of every op is validated. An op with a rule needs at least one case. Together the cases
// of an op must divide each factor of its rule. tests/meta/rules/validator_test.cpp reports missing cases.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace shoal::test {

/// Graphs as text (graph/text.h), each with one node.
std::vector<std::string> rule_cases();

/// A property that holds in all trials although the rule does not claim it, and the reason why the rule does not claim
/// it.
struct AllowedMiss {
  Op op;
  std::string_view what;
  std::string_view reason;
};
std::vector<AllowedMiss> allowed_misses();

}  // namespace shoal::test
