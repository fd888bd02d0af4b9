// The nodes on which the rule of every op is validated. An op with a rule needs one case at least, and together
// they must divide each of its factors; tests/meta/rules/validator_test.cpp says which are missing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace shoal::test {

/// Graphs as text (graph/text.h), each of one node.
std::vector<std::string> rule_cases();

/// What the trials find right although the rule does not say so, and why it does not.
struct AllowedMiss {
  Op op;
  std::string_view what;
  std::string_view reason;
};
std::vector<AllowedMiss> allowed_misses();

}  // namespace shoal::test
