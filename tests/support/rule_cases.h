// Test cases for the sharding rules of all ops. Each op with a rule needs at least one case. Each factor of the rule
// must be divided in at least one case of the op. tests/meta/rules/validator_test.cpp reports missing cases.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace shoal::test {

/// Graphs as text (graph/text.h). Each graph has one node.
std::vector<std::string> rule_cases();

/// A property that holds in all trials although the rule does not claim the property. `reason` explains why the rule
/// does not claim the property.
struct AllowedMiss {
  Op op;
  std::string_view what;
  std::string_view reason;
};
std::vector<AllowedMiss> allowed_misses();

}  // namespace shoal::test
