// attention: heads, queries and batches are independent. Groups of heads share a KV head, which several devices have
// when a group is divided among them. The result is linear in v.
#include "meta/rules/rules.h"

namespace shoal::meta::rules {

std::string attention(const Tensor& node) {
  const std::string heads = grouped('h', 'g', node.src[0]->shape[2], node.src[1]->shape[2]);
  return sources(node, {"(d) t h z", "(d) (s) " + heads + " z", "(e) (s) " + heads + " z", "t", "(s) t", "h"}) +
         " -> (e) h t z" + linear(node, {2});
}

}  // namespace shoal::meta::rules
