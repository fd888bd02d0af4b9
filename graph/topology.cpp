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

std::shared_ptr<const Topology> Graph::topology() const {
  if (topology_ != nullptr) return topology_;
  auto made = std::make_shared<const Topology>(*this);
  if (frozen_) topology_ = made;
  return made;
}

Topology::Topology(const Graph& graph) {
  entries_.reserve(graph.inputs().size() + graph.nodes().size());
  for (const Tensor* input : graph.inputs()) entries_.push_back(entry_of(*input));
  for (const Tensor* node : graph.nodes()) entries_.push_back(entry_of(*node));
}

}  // namespace shoal
