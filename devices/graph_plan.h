// GraphPlan is a range of a graph, compiled for one backend. This header also contains plan options and recordings of
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

/// A backend's plan that was made in advance, before the graph had memory.
struct PreparedPlan {
  virtual ~PreparedPlan() = default;
};

/// Options for making a plan.
///
/// With cuts {4, 9} a range of 12 nodes has three segments, [0, 4), [4, 9) and [9, 12), which are queued one by one.
/// Between two segments, other backends may read the shown nodes and write late inputs.
struct PlanOptions {
  /// Nodes before which a run may pause: indices inside the range, ascending, without the first node of the range.
  std::vector<int> cuts = {};
  /// Nodes of the range that other backends read at the first cut after the node, or at the end of the range. Their
  /// values stay valid until then.
  std::vector<const Tensor*> shown = {};
  /// Inputs that are written before a certain segment instead of before the run.
  std::vector<LateInput> late = {};
  /// Ranges of nodes that run fused (see MemoryPlanOptions). They affect only memory: the caller ensures that each
  /// range runs as one.
  std::vector<NodeRange> fused = {};
  /// Source of compute memory; nullptr allocates memory for this plan alone. With an arena, the values of inputs and
  /// nodes are valid until another plan of the arena runs. The arena must outlive the plan.
  ComputeArena* arena = nullptr;
  /// Neighbours of the range in fused collective calls (FusedNorm in collectives/). `before` is the last node of the
  /// call directly before the range. `behind` is the product that starts the call directly after the range. nullptr if
  /// there is no such call. See PassedForms.
  const Tensor* before = nullptr;
  Tensor* behind = nullptr;
  /// Label of the plan's runs in traces, shown before the node numbers: "step 3".
  std::string label = {};
  /// A plan that was made in advance for the same range, cuts, shown nodes and late inputs; nullptr if there is none. A
  /// backend may take the contents of this plan instead of planning the range again. Backends that make other kinds of
  /// plans ignore it. Making a plan throws InvalidArgument if the contents were already taken.
  PreparedPlan* prepared = nullptr;
};

/// A plan and its neighbours pass columns to each other. These bits list the forms of a column that are passed in
/// addition to its plain values. The device defines the bits. Every run of the plan reads the forms of `before` and
/// writes the forms of `behind`.
struct PassedForms {
  uint32_t before = 0;  ///< forms of the column from PlanOptions::before
  uint32_t behind = 0;  ///< forms of the column that PlanOptions::behind multiplies
};

/// A graph range compiled for one backend: everything that does not change between runs is resolved. Owns the memory
/// that it allocated. It may outlive its backend, its graph and its sources, but cannot run without them. The caller
/// ensures that the graph exists during a run; a missing backend or source is detected.
class GraphPlan {
 public:
  explicit GraphPlan(Backend& backend);
  virtual ~GraphPlan() = default;
  GraphPlan(const GraphPlan&) = delete;
  GraphPlan& operator=(const GraphPlan&) = delete;
  Backend& backend() const { return backend_; }
  /// Whether the backend exists. A backend is destroyed only after all its queued work is done.
  bool has_backend() const { return !life_.expired(); }
  /// Compute memory of this plan on its device or devices, in bytes.
  virtual size_t allocated_bytes() const = 0;
  /// Number of parts in which a run can be queued: number of cuts + 1.
  virtual int segments() const { return 1; }
  /// The first segment before which the caller may write an input of the graph, on every device that has a copy of the
  /// input. Until that segment, other tensors use the input's memory. 0 for all inputs except late ones.
  virtual int writable_from(const Tensor& input) const {
    (void)input;
    return 0;
  }
  virtual PassedForms passed_forms() const { return {}; }
  /// Throws InvalidArgument, naming a tensor, if a weight, cache or input that was placed before the plan was made has
  /// lost its memory.
  void check_memory() const {
    for (const Memory& memory : reads_) {
      if (!memory.buffer.is_there()) fail_without(memory);
    }
  }

 protected:
  /// Records the buffers that the range reads. Called by constructors, after everything is placed, and by
  /// Backend::update_plan.
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

/// Holds the buffers that a plan reads (GraphPlan::check_memory) while it runs. Throws InvalidArgument if a buffer was
/// freed or reset.
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

/// Work of one backend, recorded between start_recording() and stop_recording(): plans, and collectives among backends
/// that are all recording. It refers to the plans and tensors, which must outlive it.
class Recording {
 public:
  virtual ~Recording() = default;
};

}  // namespace shoal
