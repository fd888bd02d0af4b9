// Memory planning of a graph: lifetimes to offsets. A pure function of the graph and two size functions;
// devices/allocate.h turns the result into buffers, meta/ plans every rank's local graph with it.
//
// Which tensors are planned: nodes and inputs that own bytes (no views, no persistent leaves, no set_rows
// results) and have no buffer yet. Inputs and outputs live over the whole graph; any other tensor from its
// node to its last user (views of it included), a shown one at least past the next cut; a late input from the
// segment before which it is written to its last user. A node may take over the memory of a source that dies
// there (OpInfo::in_place_sources). A node's workspace lives only while the node runs, and that of nodes which
// never run at the same time is shared.
//
// Example, alignment 1, sizes in bytes: x(100, input) -> a = f(x) 40 -> b = g(a) 40 -> c = h(b) 40, output.
// f, g, h cannot run in place: a at 100, b at 140, c at 100 again (a is dead): total 180, not 220.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace shoal {

/// An input that is not there when a run begins: it is written before each run of a segment, and no node of an earlier
/// one reads it. Its memory serves others until then.
struct LateInput {
  const Tensor* input = nullptr;
  int segment = 0;
};

/// Nodes [begin, end) of a graph.
struct NodeRange {
  int begin = 0, end = 0;
};

struct MemoryPlanOptions {
  size_t alignment = 64;
  /// Bytes a tensor needs, padding included; default Tensor::bytes().
  std::function<size_t(const Tensor&)> alloc_size;
  /// Scratch bytes of a node; default 0.
  std::function<size_t(const Tensor&)> workspace_size;
  /// Nodes before which a run may pause, ascending, and nodes that others read when it does (devices/backend.h).
  std::vector<int> cuts;
  std::vector<const Tensor*> shown;
  std::vector<LateInput> late;
  /// Nodes that run as one, ascending: sources, results and workspaces stay until the last is done, but for what is
  /// taken over in place. The weighted sum of one token's experts and its product always count as such nodes.
  std::vector<NodeRange> fused;
  /// No chunk grows past this unless one tensor alone is larger (BufferType::max_size).
  size_t max_chunk = std::numeric_limits<size_t>::max();
};

/// Where something lies: `offset` bytes into buffer number `chunk`, in the memory plan of a graph from node
/// `first_step` on.
struct MemoryPlace {
  int chunk = 0;
  size_t offset = 0;
  size_t size = 0;
  int first_step = 0;
};

struct MemoryPlan {
  std::vector<size_t> chunk_sizes;  ///< bytes per buffer; empty when there is nothing to place
  std::unordered_map<const Tensor*, MemoryPlace> tensors;
  std::unordered_map<const Tensor*, MemoryPlace> workspaces;  ///< keyed by node
  size_t total_bytes() const;
};

/// Throws InvalidArgument for a late input that is read before it is written.
MemoryPlan plan_memory(const GraphRange& range, const MemoryPlanOptions& options);
/// Its chunk_sizes alone, in half the time.
std::vector<size_t> plan_chunks(const GraphRange& range, const MemoryPlanOptions& options);

/// True when a tensor owns bytes that a plan has to place.
bool needs_placement(const Tensor& tensor);

}  // namespace shoal
