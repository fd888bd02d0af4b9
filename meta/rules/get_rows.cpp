// get_rows: a device that has some rows of the table gives zeros for the others (vocabulary-parallel embedding).
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string get_rows(const Tensor& node) {
  return "x [r] c d, i c d -> x i c d" + linear(node, {0});
}

}  // namespace shoal::meta::rules
