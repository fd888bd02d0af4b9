// cast: linear where nothing is rounded. A Partial f32 value becomes mirrored before it is made smaller, so that
// one rounding happens and not one for each addend.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string cast(const Tensor& node) {
  const DType from = node.src[0]->dtype;
  const bool exact = traits(from).is_float && (node.dtype == DType::kF32 || node.dtype == from);
  return std::string("a b c d -> a b c d") + (exact ? " | linear 0" : "");
}

}  // namespace shoal::meta::rules
