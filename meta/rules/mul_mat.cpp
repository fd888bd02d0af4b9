// mul_mat: k is contracted. Source 0 may have fewer batches on axes 2 and 3; a single one serves all of them.
#include <fmt/format.h>

#include "meta/rules/rules.h"

namespace shoal::meta::rules {
namespace {

std::string batches(char letter, char spare, int64_t a, int64_t b) {
  return a == 1 && b != 1 ? "1" : grouped(letter, spare, b, a);
}

}  // namespace

std::string mul_mat(const Tensor& node) {
  const Shape& a = node.src[0]->shape;
  const Shape& b = node.src[1]->shape;
  return fmt::format("k m {} {}, k n c d -> m n c d | sum k", batches('c', 'e', a[2], b[2]),
                     batches('d', 'f', a[3], b[3])) +
         linear(node, {0, 1});
}

}  // namespace shoal::meta::rules
