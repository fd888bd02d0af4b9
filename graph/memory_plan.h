// Memory planning of a graph: turns lifetimes into offsets. The plan is a pure function of the graph and of two size
// functions. devices/allocate.h turns the plan into buffers. meta/ plans the memory of every rank's local graph in this
// way.
//
// Planned tensors are the nodes and inputs that own bytes and have no buffer yet. Views, persistent leaves and results
// of cache writes are not planned. Inputs are live throughout the graph. An output is live from its node until the end
// of the graph. A late input (LateInput) is written during the run, just before a segment; it is live
// from the start of this segment until its last use. Any other tensor is live from the node that computes it until its
// last use; a use of a view counts as a use of the tensor that owns the bytes. A tensor in MemoryPlanOptions::shown is
// live at least until after the next cut (pause of the run). A node may overwrite a source that no later node uses
// (OpInfo::in_place_sources). A node's workspace is live only while the node runs, so nodes that never run at the same
// time share workspace memory.
//
// Example, alignment 1, sizes in bytes: x(100, input) -> a = f(x) 40 -> b = g(a) 40 -> c = h(b) 40, output. f, g and h
// cannot run in place: a is placed at 100, b at 140, and c at 100 again because a is dead. The total is 180, not 220.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace shoal {

/// An input that is written before each run of segment `segment` instead of before the whole run. No node of an earlier
/// segment reads the input, so other tensors may use the input's memory in earlier segments.
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
  /// Returns the number of bytes that a tensor needs, including padding. Default: Tensor::bytes().
  std::function<size_t(const Tensor&)> alloc_size;
  /// Returns the number of bytes of a node's workspace. Default: 0.
  std::function<size_t(const Tensor&)> workspace_size;
  /// `cuts`: indices of the nodes before which a run may pause, in ascending order. `shown`: nodes whose bytes the
  /// caller reads during a pause (devices/backend.h).
  std::vector<int> cuts;
  std::vector<const Tensor*> shown;
  std::vector<LateInput> late;
  /// Ranges of nodes in ascending order. Each range runs as one unit. The sources, results and workspaces of a range
  /// stay live until the last node of the range is done. However, a node of the range may overwrite a source in place.
  /// The weighted sum of each token's expert outputs, including its mul_mat_id, always counts as such a range.
  std::vector<NodeRange> fused;
  /// Maximum size of a chunk (BufferType::max_size). A tensor that is larger than this limit gets a chunk of the
  /// tensor's size.
  size_t max_chunk = std::numeric_limits<size_t>::max();
};

/// Location of a placed tensor: `offset` bytes after the start of buffer number `chunk`. The tensor is live from node
/// `first_step` on.
struct MemoryPlace {
  int chunk = 0;
  size_t offset = 0;
  size_t size = 0;
  int first_step = 0;
};

struct MemoryPlan {
  std::vector<size_t> chunk_sizes;  ///< size of each buffer in bytes; empty if no tensor needs memory
  std::unordered_map<const Tensor*, MemoryPlace> tensors;
  std::unordered_map<const Tensor*, MemoryPlace> workspaces;  ///< the key is the node that uses the workspace
  size_t total_bytes() const;
};

/// Throws InvalidArgument if a node reads a late input in a segment before the input's segment.
MemoryPlan plan_memory(const GraphRange& range, const MemoryPlanOptions& options);
/// Computes only the chunk_sizes of plan_memory, in half the time.
std::vector<size_t> plan_chunks(const GraphRange& range, const MemoryPlanOptions& options);

/// Whether the tensor owns bytes that a plan has to place.
bool needs_placement(const Tensor& tensor);

}  // namespace shoal
