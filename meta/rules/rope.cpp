// rope: pairs of a row are rotated by angles that depend on their place in it, so the row is needed whole; a rotation
// is linear.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string rope(const Tensor& node) {
  return sources(node, {"(d) h t z", "t", "(f)"}) + " -> (d) h t z | linear 0";
}

}  // namespace shoal::meta::rules
