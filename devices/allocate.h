// From plans to memory: places persistent tensors and the compute tensors of a graph in buffers of one type,
// over several buffers when the type's max_size asks for it. All or nothing: on failure everything is released.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "devices/device.h"
#include "graph/memory_plan.h"

namespace shoal {

/// Offsets of tensors laid one after the other with the type's alignment and max_size.
struct StaticLayout {
  std::vector<size_t> chunk_sizes;      ///< bytes, rounded up to the alignment
  std::vector<MemoryPlace> placements;  ///< one for each tensor, in order
  size_t total_bytes() const;
};
/// Pure; also what `shoal plan` reports without allocating. Throws DeviceError when one tensor exceeds max_size.
StaticLayout layout_tensors(std::span<Tensor* const> tensors, const BufferType& type);

/// Allocates and places the tensors that have no buffer yet, through BufferType::allocate_tensors. Returns nullptr
/// when there is nothing to place.
std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, BufferType& type, Usage usage);

/// The memory-plan options of a device: its workspaces; alignment, alloc sizes and max_size of its buffer type, or of
/// another that it can use.
MemoryPlanOptions memory_options(Device& device);
MemoryPlanOptions memory_options(Device& device, const BufferType& type);

/// Compute memory that plans of one backend share because they never need it at the same time: the runs of a stream
/// follow each other, and what a plan made is gone when another one runs. Each plan lies at the start of it. What has
/// become too small is replaced by something larger, and stays with the plans that are in it. One thread at a time.
class ComputeArena {
 public:
  /// Of a backend that stands for several (Backend::members) it is one arena for each of them.
  /// `type`: instead of the device's own, for a simple backend; the device must be able to use it.
  explicit ComputeArena(Backend& backend, BufferType* type = nullptr);
  BufferType& type() const { return *type_; }
  /// Buffers of at least these sizes.
  std::vector<std::shared_ptr<Buffer>> take(std::span<const size_t> sizes);
  ComputeArena& member(size_t rank);
  /// What take() would give now, all members together.
  size_t bytes() const;
  /// The same for each member; one value where there are none.
  std::vector<size_t> bytes_per_member() const;

 private:
  BufferType* type_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::vector<ComputeArena> members_;
};

/// An input that lies in memory of a plan.
struct PlacedInput {
  int number = 0;
  int segment = 0;  ///< from which on its memory is its own
};
/// One of those, in ascending order; nullptr when the input is not among them.
const PlacedInput* find_placed(std::span<const PlacedInput> inputs, int number);

/// Memory of one graph range, its own or part of an arena.
struct GraphBuffers {
  std::vector<std::shared_ptr<Buffer>> parts;
  size_t bytes = 0;                      ///< that the range needs
  std::vector<PlacedInput> inputs = {};  ///< that lie here, ascending
};

/// Plans and allocates the compute tensors and inputs of a range that have no buffer yet, gives views their
/// addresses and nodes without a workspace theirs. No parts when there was nothing to place. Of the options only cuts,
/// shown nodes, late inputs and the arena count. Throws InvalidArgument when a source that the range does not make has
/// no memory.
GraphBuffers allocate_graph(const GraphRange& range, Device& device, const PlanOptions& options = {});

/// Undoes allocate_graph before `memory`, its result, is freed: the range's tensors and workspaces in it are
/// unplaced, so that the graph can be planned again.
void release_graph(const GraphRange& range, const GraphBuffers& memory);

/// A range of nodes that belongs to one plan while this lives (Graph::claim).
class GraphClaim {
 public:
  GraphClaim(const GraphRange& range, const Device& device);
  ~GraphClaim();
  GraphClaim(const GraphClaim&) = delete;
  GraphClaim& operator=(const GraphClaim&) = delete;
  const GraphRange& range() const { return range_; }
  bool graph_is_gone() const { return life_.expired(); }

 private:
  GraphRange range_;
  std::weak_ptr<const void> life_;
};

/// What a plan owns: the claim on its nodes and allocate_graph's result, both released at the end if the graph is still
/// there. Throws InvalidArgument when another plan has one of the nodes.
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
  /// False: something that the range of this graph of the same topology reads from outside has no memory yet, or what
  /// is to move there has some.
  bool can_move_to(const Graph& graph) const;
  /// Moves to another graph of the same topology (Backend::update_plan), whose tensors take the places of the old ones.
  /// The old graph may be gone.
  void move_to(Graph& graph);

 private:
  /// Of an input or node that lies in our buffers.
  struct Place {
    Buffer* buffer;
    std::byte *data, *workspace;
  };

  Device& device_;
  std::unique_ptr<GraphClaim> claim_;
  GraphBuffers buffers_;
  int input_count_;                    ///< of the graph
  std::vector<Place> inputs_, nodes_;  ///< of the inputs in `buffers_`, and of the range
};

}  // namespace shoal
