// Who reads the nodes of a graph, counted once for a plan: a value with a single reader need not exist
// when that node's kernel computes it on the way.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace shoal {

class Readers {
 public:
  /// Reading a view is reading what lies behind it. `shown`: nodes that others read besides.
  Readers(const Graph& graph, std::span<const Tensor* const> shown);
  /// Exactly one node reads the value, and the host does not.
  bool is_read_once(const Tensor& node) const { return counts_[static_cast<size_t>(node.id)] == 1; }

 private:
  std::vector<int> counts_;
};

}  // namespace shoal
