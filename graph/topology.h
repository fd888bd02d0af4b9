// The topology of a graph as a value: everything that a plan depends on, except the identity of nodes and inputs. Two
// graphs with equal topologies can use one plan alternately (Backend::update_plan). A Topology may outlive its graph:
// it keeps only the addresses of persistent leaves. A Topology is immutable and thread-safe.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace shoal {

class Topology {
 public:
  explicit Topology(const Graph& graph);
  /// Whether both graphs have the same inputs and nodes in the same order, with equal dtypes, shapes, ops, parameters,
  /// outputs and sources. Sources are equal if they are nodes or inputs with the same index, or the same weight or
  /// cache. A copy of a weight or cache must have the same original in both graphs. The originals of other copies, and
  /// all names, are ignored.
  bool operator==(const Topology& other) const = default;

 private:
  /// A source of a node. Weights and caches are identified by address, other tensors by index.
  struct Source {
    const Tensor* persistent = nullptr;
    bool is_node = false;
    int number = -1;  ///< index of the node or input; -1 if the source is absent or persistent
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
    const Tensor* copied_weight;  ///< the original, if the tensor is a copy of a weight or cache
    bool operator==(const Entry&) const = default;
  };

  static Entry entry_of(const Tensor& tensor);

  std::vector<Entry> entries_;  ///< entries of the inputs, then entries of the nodes
};

}  // namespace shoal
