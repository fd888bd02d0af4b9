// Topology of a graph as a value: everything that a plan depends on except which tensors the nodes and inputs are. Two
// graphs of equal topology can take turns with one plan (Backend::update_plan). Keeps nothing of the graph but the
// persistent leaves' addresses, so that it may outlive it. Immutable, thread-safe.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace shoal {

class Topology {
 public:
  explicit Topology(const Graph& graph);
  /// The same inputs and nodes in the same order: dtypes, shapes, ops, parameters, outputs, and sources: node or input
  /// of the same number, the very same weight or cache. A copy of a weight or cache must be of the same one, of what
  /// any other is a copy does not matter, nor do names.
  bool operator==(const Topology& other) const = default;

 private:
  /// A tensor that nodes refer to: a weight or cache by address, others by number.
  struct Source {
    const Tensor* persistent = nullptr;
    bool is_node = false;
    int number = -1;  ///< -1: absent, or persistent
    bool operator==(const Source&) const = default;
  };
  struct Entry {
    DType dtype;
    Shape shape;
    Op op;
    OpParams params;
    std::vector<Source> sources;
    bool is_output;
    bool is_copy;
    const Tensor* copied_weight;  ///< of a copy of a weight or cache: which one
    bool operator==(const Entry&) const = default;
  };

  static Entry entry_of(const Tensor& tensor);

  std::vector<Entry> entries_;  ///< inputs, then nodes
};

}  // namespace shoal
