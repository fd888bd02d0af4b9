#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string contiguous(const Tensor& node) {
  return "a b c d -> a b c d" + linear(node, {0});
}

}  // namespace shoal::meta::rules
