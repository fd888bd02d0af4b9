// Places persistent tensors, and the compute tensors of a graph, in buffers of one type. Uses several buffers if they
// exceed the type's max_size. All or nothing: a failed call releases all of its memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "devices/device.h"
#include "graph/memory_plan.h"

namespace shoal {

/// Offsets of consecutive tensors, with the type's alignment and max_size.
struct StaticLayout {
  std::vector<size_t> chunk_sizes;      ///< bytes, rounded up to the alignment
  std::vector<MemoryPlace> placements;  ///< one per tensor, in order
  size_t total_bytes() const;
};
/// A pure function. `shoal plan` uses it to report sizes without allocating. Throws DeviceError if a tensor exceeds
/// max_size.
StaticLayout layout_tensors(std::span<Tensor* const> tensors, const BufferType& type);

/// Allocates and places the tensors that have no buffer yet (BufferType::allocate_tensors). Returns nullptr if all
/// tensors have a buffer.
std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, BufferType& type, Usage usage);

/// Memory-plan options for a device: its workspace sizes, and the alignment, alloc_size() and max_size() of its buffer
/// type. The second overload uses another buffer type that the device can use.
MemoryPlanOptions memory_options(Device& device);
MemoryPlanOptions memory_options(Device& device, const BufferType& type);

/// Compute memory shared by the plans of one backend. Sharing works because a stream runs one plan at a time, and a
/// plan's values are not needed after its run. Every plan starts at offset 0. A buffer that is too small is replaced by
/// a larger one; plans that use the old buffer keep it alive. Used by one thread at a time.
class ComputeArena {
 public:
  /// For a backend with members (Backend::members), this arena contains one arena per member. `type` replaces the
  /// device's own buffer type. It may be given only for a backend without members, and only if the device can use it.
  explicit ComputeArena(Backend& backend, BufferType* type = nullptr);
  BufferType& type() const { return *type_; }
  /// Returns buffers of at least these sizes.
  std::vector<std::shared_ptr<Buffer>> take(std::span<const size_t> sizes);
  ComputeArena& member(size_t rank);
  /// Total bytes of the current buffers of all members.
  size_t bytes() const;
  /// Bytes of the current buffers of each member; a single value for a backend without members.
  std::vector<size_t> bytes_per_member() const;

 private:
  BufferType* type_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::vector<ComputeArena> members_;
};

/// An input whose memory belongs to a plan.
struct PlacedInput {
  int number = 0;
  int segment = 0;  ///< first segment in which no other tensor uses the input's memory
};
/// Finds an input by number in a list sorted by number. Returns nullptr if the list does not contain it.
const PlacedInput* find_placed(std::span<const PlacedInput> inputs, int number);

/// Memory of one graph range: its own buffers, or buffers of an arena.
struct GraphBuffers {
  std::vector<std::shared_ptr<Buffer>> parts;
  size_t bytes = 0;                      ///< needed by the range
  std::vector<PlacedInput> inputs = {};  ///< placed in these buffers, ascending by number
};

/// Plans and allocates memory for the compute tensors and inputs of a range that have no buffer yet. Sets the addresses
/// of views, and adds the workspaces that nodes lack. The result has no parts if no tensor had to be placed. Uses only
/// the cuts, shown nodes, late inputs, fused ranges and arena of the options. Throws InvalidArgument if a source from
/// outside the range has no memory.
GraphBuffers allocate_graph(const GraphRange& range, Device& device, const PlanOptions& options = {});

/// Undoes allocate_graph. Must be called before `memory`, the result of allocate_graph, is freed. Unplaces the range's
/// tensors and workspaces that are in `memory`, so that the graph can be planned again.
void release_graph(const GraphRange& range, const GraphBuffers& memory);

/// Claims a range of nodes for one plan, for the lifetime of this object (Graph::claim).
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

/// The claim of a plan on its nodes and the memory from allocate_graph. The destructor releases both if the graph still
/// exists. Throws InvalidArgument if another plan has claimed one of the nodes.
class GraphMemory {
 public:
  GraphMemory(const GraphRange& range, Device& device, const PlanOptions& options = {});
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  size_t bytes() const { return buffers_.bytes; }
  /// See GraphPlan.
  int writable_from(const Tensor& input) const;
  const GraphRange& range() const { return claim_->range(); }
  /// Whether the plan can move to `graph`, which has the same topology. Returns false if a source from outside the
  /// range has no memory yet, or if a tensor that this object would place already has memory.
  bool can_move_to(const Graph& graph) const;
  /// Moves to another graph of the same topology (Backend::update_plan). Its tensors get the addresses of the old
  /// graph's tensors. The old graph may have been destroyed.
  void move_to(Graph& graph);

 private:
  /// Address of an input or node that is placed in `buffers_`.
  struct Place {
    Buffer* buffer;
    std::byte *data, *workspace;
  };

  Device& device_;
  std::unique_ptr<GraphClaim> claim_;
  GraphBuffers buffers_;
  int input_count_;                    ///< number of inputs of the graph
  std::vector<Place> inputs_, nodes_;  ///< places of the inputs in `buffers_`, and of the nodes of the range
};

}  // namespace shoal
