// glu: act(gate) * up is linear in up. The fused form has gate and up one after the other on axis 0, each split
// alike, as segments make it.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string glu(const Tensor& node) {
  if (node.src[1] == nullptr) return "2*a b c d, - -> a b c d";
  return "a b c d, a b c d -> a b c d | linear 1";
}

}  // namespace shoal::meta::rules
