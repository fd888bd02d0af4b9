#include "graph/topology.h"

namespace shoal {

Topology::Entry Topology::entry_of(const Tensor& tensor) {
  const Tensor* original = tensor.copied_from;
  const bool lasts = original != nullptr && original->is_leaf() && original->is_persistent();
  Entry entry{tensor.dtype, tensor.shape,     tensor.op,           tensor.params,
              {},           tensor.is_output, original != nullptr, lasts ? original : nullptr};
  for (const Tensor* source : tensor.src) {
    if (source == nullptr) {
      entry.sources.emplace_back();
    } else if (source->is_leaf() && source->is_persistent()) {
      entry.sources.push_back({source, false, -1});
    } else {
      entry.sources.push_back({nullptr, !source->is_leaf(), source->id});
    }
  }
  return entry;
}

Topology::Topology(const Graph& graph) {
  for (const Tensor* input : graph.inputs()) entries_.push_back(entry_of(*input));
  for (const Tensor* node : graph.nodes()) entries_.push_back(entry_of(*node));
}

}  // namespace shoal
