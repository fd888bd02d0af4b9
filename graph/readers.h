// Counts the readers of the nodes of a range, once per plan. A value with a single reader need not be stored if the
// reader's kernel computes this value.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace shoal {

class Readers {
 public:
  /// Reading a view counts as reading the node that owns the bytes. `shown`: nodes of the range that are also read
  /// outside the range.
  Readers(const GraphRange& range, std::span<const Tensor* const> shown);
  /// Whether `node` has exactly one reader, and this reader is in the range. False if the host reads `node`.
  bool is_read_once(const Tensor& node) const { return is_read(node, 1); }
  /// Whether `node` is read exactly `times` times, and only by nodes of the range.
  bool is_read(const Tensor& node, int times) const { return counts_[static_cast<size_t>(node.id - begin_)] == times; }

 private:
  int begin_;
  std::vector<int> counts_;
};

}  // namespace shoal
