#include "graph/readers.h"

namespace shoal {

Readers::Readers(const Graph& graph, std::span<const Tensor* const> shown) : counts_(graph.nodes().size()) {
  const auto count = [this](const Tensor& read) {
    const Tensor& node = behind_views(read);
    if (!node.is_leaf()) ++counts_[static_cast<size_t>(node.id)];
  };
  for (const Tensor* node : graph.nodes()) {
    if (node->is_output) count(*node), count(*node);  // by the host, and it must be there
    if (is_view(node->op)) continue;                  // who reads the view is counted
    for (const Tensor* source : node->src) {
      if (source != nullptr) count(*source);
    }
  }
  for (const Tensor* node : shown) count(*node), count(*node);
}

}  // namespace shoal
