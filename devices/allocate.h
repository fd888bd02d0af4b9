// Places persistent tensors, and the compute tensors of a graph, in buffers of one type. If the total size of the
// tensors exceeds max_size() of the type, several buffers are used. A call that fails frees all memory that it has
// allocated.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "devices/device.h"
#include "graph/memory_plan.h"

namespace shoal {

/// Buffer sizes and offsets for consecutive tensors. The layout respects the alignment and max_size() of the buffer
/// type.
struct StaticLayout {
  std::vector<size_t> chunk_sizes;      ///< bytes of each buffer, rounded up to the alignment
  std::vector<MemoryPlace> placements;  ///< one placement per tensor, in the order of the tensors
  size_t total_bytes() const;
};
/// Computes the layout without allocating memory. For example, `shoal plan` uses the layout to report sizes. Throws
/// DeviceError if a tensor exceeds max_size().
StaticLayout layout_tensors(std::span<Tensor* const> tensors, const BufferType& type);

/// Allocates and places the tensors that have no buffer yet (BufferType::allocate_tensors). Returns nullptr if all
/// tensors have a buffer.
std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, BufferType& type, Usage usage);

/// Memory-plan options for a device: its workspace sizes, and the alignment, alloc_size() and max_size() of its buffer
/// type. In the second overload, `type` replaces this buffer type. The device must be able to use `type`.
MemoryPlanOptions memory_options(Device& device);
MemoryPlanOptions memory_options(Device& device, const BufferType& type);

/// Compute memory shared by the plans of one backend. The plans can share memory because a stream runs one plan at a
/// time, and the values of a plan are not needed after its run. Every plan starts at offset 0. A buffer that is too
/// small is replaced by a larger buffer. Plans that use the old buffer keep it alive. An arena is not thread-safe.
class ComputeArena {
 public:
  /// For a backend with members (Backend::members), this arena contains one arena per member. `type` replaces the
  /// device's own buffer type. A caller may pass `type` only for a backend without members, and only if the device can
  /// use `type`.
  explicit ComputeArena(Backend& backend, BufferType* type = nullptr);
  BufferType& type() const { return *type_; }
  /// Returns one buffer for each of `sizes`. Each buffer has at least the requested size.
  std::vector<std::shared_ptr<Buffer>> take(std::span<const size_t> sizes);
  ComputeArena& member(size_t rank);
  /// Total bytes of the current buffers of all members.
  size_t bytes() const;
  /// Bytes of the current buffers of each member. For a backend without members, the result is a single value.
  std::vector<size_t> bytes_per_member() const;

 private:
  BufferType* type_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::vector<ComputeArena> members_;
};

/// An input whose memory belongs to a plan.
struct PlacedInput {
  int number = 0;
  int segment = 0;  ///< result of GraphPlan::writable_from(); before this segment, other tensors may use the input's
                    ///< memory
};
/// Finds an input by number in a list sorted by number. Returns nullptr if the list does not contain it.
const PlacedInput* find_placed(std::span<const PlacedInput> inputs, int number);

/// Memory of one graph range. The range either has its own buffers or uses buffers of an arena.
struct GraphBuffers {
  std::vector<std::shared_ptr<Buffer>> parts;
  size_t bytes = 0;                      ///< bytes that the range needs
  std::vector<PlacedInput> inputs = {};  ///< inputs placed in these buffers, in ascending order of number
};

/// Plans and allocates memory for all compute tensors and inputs of a range that have no buffer yet. Sets the addresses
/// of views, and adds missing workspaces to nodes. `parts` of the result is empty if no tensor had to be placed. This
/// function uses only the members `cuts`, `shown`, `late`, `fused` and `arena` of `options`. Throws InvalidArgument if
/// a source from outside the range has no memory.
GraphBuffers allocate_graph(const GraphRange& range, Device& device, const PlanOptions& options = {});

/// Undoes allocate_graph. The caller must call this function before it frees `memory`, the result of allocate_graph.
/// Unplaces all tensors and workspaces of the range that are in `memory`, so that the graph can be planned again.
void release_graph(const GraphRange& range, const GraphBuffers& memory);

/// Claims a range of nodes for one plan (Graph::claim). The claim ends when this object is destroyed.
class GraphClaim {
 public:
  GraphClaim(const GraphRange& range, const Device& device);
  ~GraphClaim();
  GraphClaim(const GraphClaim&) = delete;
  GraphClaim& operator=(const GraphClaim&) = delete;
  const GraphRange& range() const { return range_; }
  bool graph_is_destroyed() const { return life_.expired(); }

 private:
  GraphRange range_;
  std::weak_ptr<const void> life_;
};

/// The claim of a plan on its nodes, and the memory from allocate_graph. The constructor throws InvalidArgument if
/// another plan has claimed one of the nodes. The destructor releases the claim and the memory if the graph still
/// exists.
class GraphMemory {
 public:
  GraphMemory(const GraphRange& range, Device& device, const PlanOptions& options = {});
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  size_t bytes() const { return buffers_.bytes; }
  /// See GraphPlan::writable_from().
  int writable_from(const Tensor& input) const;
  const GraphRange& range() const { return claim_->range(); }
  /// Whether move_to() is possible for `graph`, which has the same topology. Returns false if a source from outside the
  /// range has no memory yet. Also returns false if a tensor that move_to() would place already has memory.
  bool can_move_to(const Graph& graph) const;
  /// Moves to another graph of the same topology (Backend::update_plan). The new graph's tensors get the addresses of
  /// the old graph's tensors. The old graph may already be destroyed.
  void move_to(Graph& graph);

 private:
  /// Buffer, data address and workspace address of an input or node that is placed in `buffers_`.
  struct Place {
    Buffer* buffer;
    std::byte *data, *workspace;
  };

  Device& device_;
  std::unique_ptr<GraphClaim> claim_;
  GraphBuffers buffers_;
  int input_count_;                    ///< number of inputs of the graph
  std::vector<Place> inputs_, nodes_;  ///< places of the graph's inputs and of the range's nodes in `buffers_`
};

}  // namespace shoal
