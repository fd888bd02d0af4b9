// scale: a bias would be added once for each addend.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string scale(const Tensor& node) {
  const bool has_bias = std::get<ScaleParams>(node.params).bias != 0.0f;
  return std::string("a b c d -> a b c d") + (has_bias ? "" : " | linear 0");
}

}  // namespace shoal::meta::rules
