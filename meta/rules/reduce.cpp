// sum_rows, argmax: a sum of parts is a part of the sum; the largest element needs the whole row.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string sum_rows(const Tensor&) {
  return "a b c d -> 1 b c d | sum a | linear 0";
}
std::string argmax(const Tensor&) {
  return "(a) b c d -> 1 b c d";
}

}  // namespace shoal::meta::rules
