// unary: of all functions of one element only the negation is linear.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string unary(const Tensor& node) {
  const bool is_linear = std::get<UnaryParams>(node.params).kind == UnaryKind::kNeg;
  return std::string("a b c d -> a b c d") + (is_linear ? " | linear 0" : "");
}

}  // namespace shoal::meta::rules
