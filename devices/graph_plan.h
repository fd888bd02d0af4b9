// GraphPlan is a range of a graph, compiled for one backend. This header also declares plan options and recordings of
// runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "devices/buffer.h"
#include "graph/memory_plan.h"

namespace shoal {

class Backend;
class ComputeArena;

/// A backend's plan that was made before the graph had memory.
struct PreparedPlan {
  virtual ~PreparedPlan() = default;
};

/// Options for making a plan.
///
/// Example: a range of 12 nodes with cuts {4, 9} has the segments [0, 4), [4, 9) and [9, 12). A caller can queue each
/// segment separately. Between two segments, other backends may read the nodes in `shown` and write the inputs in
/// `late`.
struct PlanOptions {
  /// Indices of the nodes before which a run may pause, in ascending order. Each index is in the range, after the first
  /// node of the range.
  std::vector<int> cuts = {};
  /// Nodes of the range that other backends read. These backends read a node at the first cut after the node, or at the
  /// end of the range. The values of the node stay valid until that cut or end.
  std::vector<const Tensor*> shown = {};
  /// Inputs that are written during the run, before the segment LateInput::segment.
  std::vector<LateInput> late = {};
  /// Ranges of nodes that run fused (see MemoryPlanOptions). These ranges affect only the memory plan. The caller
  /// ensures that each range runs as one operation.
  std::vector<NodeRange> fused = {};
  /// Source of compute memory. With nullptr, the plan allocates its own memory. With an arena, the values of inputs and
  /// nodes are valid until another plan of the arena runs. The arena must outlive the plan.
  ComputeArena* arena = nullptr;
  /// Nodes of fused collective calls next to the range (FusedNorm in collectives/). `before` is the last node of the
  /// call directly before the range. `behind` is the product that starts the call directly after the range. A pointer
  /// is nullptr if there is no such call. See PassedForms.
  const Tensor* before = nullptr;
  Tensor* behind = nullptr;
  /// Label of the plan's runs in traces, such as "step 3". Traces print it before the node numbers.
  std::string label = {};
  /// A plan that was made in advance for the same range and the same `cuts`, `shown` and `late`; nullptr if there is
  /// none. A backend may take the contents of this plan and then need not plan the range again. A backend ignores a
  /// prepared plan of another class. If the contents were already taken, making a plan throws InvalidArgument.
  PreparedPlan* prepared = nullptr;
};

/// A plan and its neighbours pass columns to each other, for example in quantized form. The bits of this struct list
/// the forms of a column that are passed in addition to the column's plain values. The device defines the bits. Every
/// run of the plan reads the forms in `before` and writes the forms in `behind`.
struct PassedForms {
  uint32_t before = 0;  ///< forms of the column from PlanOptions::before
  uint32_t behind = 0;  ///< forms of the column that PlanOptions::behind multiplies
};

/// A graph range compiled for one backend. The plan contains everything that does not change between runs. The plan
/// owns the memory that it allocated. It may outlive its backend, its graph and its sources, but cannot run without
/// them. The caller ensures that the graph exists during a run. A run detects a missing backend or source.
class GraphPlan {
 public:
  explicit GraphPlan(Backend& backend);
  virtual ~GraphPlan() = default;
  GraphPlan(const GraphPlan&) = delete;
  GraphPlan& operator=(const GraphPlan&) = delete;
  Backend& backend() const { return backend_; }
  /// Whether the backend exists. A backend is destroyed only after all its queued work is done.
  bool has_backend() const { return !life_.expired(); }
  /// Bytes of compute memory of this plan, summed over its devices.
  virtual size_t allocated_bytes() const = 0;
  /// Number of segments, each of which can be queued separately. The result is the number of cuts + 1.
  virtual int segments() const { return 1; }
  /// The earliest segment before which the caller may write an input of the graph. Before this segment, other tensors
  /// use the input's memory. The result applies to every device that has a copy of the input. If the input is not in
  /// PlanOptions::late, the result is 0.
  virtual int writable_from(const Tensor& input) const {
    (void)input;
    return 0;
  }
  virtual PassedForms passed_forms() const { return {}; }
  /// Checks the weights, caches and inputs that were placed before the plan was made. If one of these tensors has lost
  /// its memory, throws InvalidArgument that names a tensor in the lost memory.
  void check_memory() const {
    for (const Memory& memory : reads_) {
      if (!memory.buffer.is_there()) fail_without(memory);
    }
  }

 protected:
  /// Records the buffers that the range reads. Constructors call this function after all tensors are placed.
  /// Backend::update_plan also calls this function.
  void note_memory(const GraphRange& range);

 private:
  friend class HeldMemory;
  struct Memory {
    BufferRef buffer;
    std::string tensor;  ///< name of one tensor in this buffer
  };
  [[noreturn]] void fail_without(const Memory& memory) const;

  Backend& backend_;
  std::weak_ptr<const void> life_;
  std::vector<Memory> reads_;
};

/// During a run of a plan, holds the buffers that the plan reads (GraphPlan::check_memory). The destruction or reset of
/// a held buffer waits. Throws InvalidArgument if a buffer was already freed or reset.
class HeldMemory {
 public:
  explicit HeldMemory(const GraphPlan& plan);
  ~HeldMemory() { release(plan_.reads_.size()); }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

 private:
  void release(size_t count) const;

  const GraphPlan& plan_;
};

/// Work of one backend, recorded between start_recording() and stop_recording(). The work consists of plans, and of
/// collectives among backends that are all recording. A recording refers to its plans and tensors, which must outlive
/// the recording.
class Recording {
 public:
  virtual ~Recording() = default;
};

}  // namespace shoal
