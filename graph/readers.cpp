#include "graph/readers.h"

namespace shoal {

Readers::Readers(const GraphRange& range, std::span<const Tensor* const> shown)
    : begin_(range.begin), counts_(static_cast<size_t>(range.end - range.begin)) {
  const auto count = [&](const Tensor& read, int times) {
    const Tensor& node = behind_views(read);
    if (!node.is_leaf() && node.id >= range.begin) counts_[static_cast<size_t>(node.id - range.begin)] += times;
  };
  constexpr int kKept = 1 << 16;  // larger than any number of readers, so the value is always stored
  const auto nodes = range.graph->nodes();
  const std::shared_ptr<const LastUses> uses = range.graph->last_uses();
  for (int i = range.begin; i < range.end; ++i) {
    const Tensor* node = nodes[static_cast<size_t>(i)];
    if (node->is_output || uses->nodes[static_cast<size_t>(i)] >= range.end) count(*node, kKept);
    if (is_view(node->op)) continue;  // readers of the view are counted instead
    for (const Tensor* source : node->src) {
      if (source != nullptr) count(*source, 1);
    }
  }
  for (const Tensor* node : shown) count(*node, kKept);
}

}  // namespace shoal
