// soft_max: a row is needed whole; the mask may be the same for all heads and batches.
#include <fmt/format.h>

#include "meta/rules/rules.h"

namespace shoal::meta::rules {
namespace {

std::string mask(const Tensor& node) {
  const Tensor* mask = node.src[1];
  if (mask == nullptr) return "-";
  return fmt::format("(s) t {} {}", broadcast('h', mask->shape[2], node.shape[2]),
                     broadcast('z', mask->shape[3], node.shape[3]));
}

}  // namespace

std::string soft_max(const Tensor& node) {
  return sources(node, {"(s) t h z", mask(node), "h"}) + " -> (s) t h z";
}

}  // namespace shoal::meta::rules
