// top_k: needs the whole row; its k results are an axis of their own.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string top_k(const Tensor&) {
  return "(a) b c d -> (k) b c d";
}

}  // namespace shoal::meta::rules
