// Nodes that run together: patterns of neighbours in a graph for which there are kernels that do all of them at once. A
// pattern is used only where nobody else reads a value that its kernel does not write, and where no result lies on
// bytes that the kernel still reads.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "devices/cuda/op_kernel.h"
#include "graph/graph.h"

namespace shoal::cuda {

/// Who reads the nodes of a graph, counted once for a plan.
class Readers {
 public:
  /// `shown`: nodes that others read besides.
  Readers(const Graph& graph, std::span<const Tensor* const> shown);
  /// Exactly one node reads the value, and the host does not.
  bool is_read_once(const Tensor& node) const { return counts_[static_cast<size_t>(node.id)] == 1; }

 private:
  std::vector<int> counts_;
};

struct FusedNodes {
  size_t count = 1;
  void (*run)(const LaunchContext& context, std::span<Tensor* const> nodes) = nullptr;
};

/// The longest pattern that the first of these nodes begins; just that node when there is none. The nodes follow each
/// other in the graph, without the views and empty results between them.
FusedNodes fuse(std::span<Tensor* const> nodes, const Readers& readers);

}  // namespace shoal::cuda
