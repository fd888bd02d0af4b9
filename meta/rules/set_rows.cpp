// set_rows: a device writes the rows that it has and skips the others. The result lies as the cache does.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string set_rows(const Tensor&) {
  return "x [r] h z, x (i) h z, (i) -> x [r] h z";
}

}  // namespace shoal::meta::rules
