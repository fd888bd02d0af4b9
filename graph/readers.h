// Who reads the nodes of a range, counted once for a plan: a value with a single reader need not exist when that node's
// kernel computes it on the way.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace shoal {

class Readers {
 public:
  /// Reading a view is reading what lies behind it. `shown`: nodes of the range that others read besides.
  Readers(const GraphRange& range, std::span<const Tensor* const> shown);
  /// Exactly one node reads the value of a node of the range. This node lies in the range. The host does not read it.
  bool is_read_once(const Tensor& node) const { return is_read(node, 1); }
  /// The same for so many reads.
  bool is_read(const Tensor& node, int times) const { return counts_[static_cast<size_t>(node.id - begin_)] == times; }

 private:
  int begin_;
  std::vector<int> counts_;
};

}  // namespace shoal
