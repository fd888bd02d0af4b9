// From plans to memory: places persistent tensors and the compute tensors of a graph in buffers of one type,
// over several buffers when the type's max_size asks for it. All or nothing: on failure everything is released.
#pragma once

#include <memory>
#include <span>

#include "devices/device.h"
#include "graph/memory_plan.h"

namespace shoal {

/// Offsets of tensors laid one after the other with the type's alignment and max_size.
struct StaticLayout {
  std::vector<size_t> chunk_sizes;    ///< bytes, rounded up to the alignment
  std::vector<Placement> placements;  ///< one for each tensor, in order
  size_t total_bytes() const;
};
/// Pure; also what `shoal plan` reports without allocating. Throws DeviceError when one tensor exceeds max_size.
StaticLayout layout_tensors(std::span<Tensor* const> tensors, const BufferType& type);

/// Allocates and places the tensors that have no buffer yet, through BufferType::allocate_tensors. Returns nullptr
/// when there is nothing to place.
std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, BufferType& type, Usage usage);

/// The memory-plan options of a device: its alignment, alloc sizes, workspaces, max_size.
MemoryPlanOptions memory_options(Device& device);

/// Plans and allocates the compute tensors and inputs of a range that have no buffer yet, gives views their
/// addresses and nodes without a workspace theirs. Returns nullptr when there was nothing to place. Throws
/// InvalidArgument when a source that the range does not make has no memory.
std::unique_ptr<Buffer> allocate_graph(const GraphRange& range, Device& device);

/// Undoes allocate_graph before `memory`, its result, is freed: the range's tensors and workspaces in it are
/// unplaced, so that the graph can be planned again.
void release_graph(const GraphRange& range, const Buffer& memory);

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
  GraphMemory(const GraphRange& range, Device& device);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  size_t bytes() const { return buffer_ != nullptr ? buffer_->size() : 0; }

 private:
  GraphClaim claim_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace shoal
