// mul_mat_id: a device that has some of the experts gives zeros for tokens routed to others (expert parallelism).
// x may be the same for all experts of a token (axis 1 of length 1).
#include <fmt/format.h>

#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string mul_mat_id(const Tensor& node) {
  const std::string used = broadcast('u', node.src[1]->shape[1], node.src[2]->shape[0]);
  return fmt::format("k m [e], k {} t, u t -> m u t | sum k", used) + linear(node, {0, 1});
}

}  // namespace shoal::meta::rules
