// A value for each tensor that a graph's nodes make or read: those of the graph by number, others by address. Values
// are made at first use and do not move.
#pragma once

#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace shoal::meta {

template <class Value>
class PerTensor {
 public:
  explicit PerTensor(const Graph& graph) : nodes_(graph.nodes().size()), inputs_(graph.inputs().size()) {}

  Value& operator[](const Tensor& tensor) {
    if (!tensor.is_leaf()) return nodes_[static_cast<size_t>(tensor.id)];
    return tensor.id >= 0 ? inputs_[static_cast<size_t>(tensor.id)] : others_[&tensor];
  }

 private:
  std::vector<Value> nodes_, inputs_;
  std::unordered_map<const Tensor*, Value> others_;
};

}  // namespace shoal::meta
