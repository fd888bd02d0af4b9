// GraphPlan: a range of a graph, compiled for one backend; the options to make it, and recordings of runs.
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

/// A plan of a graph that was made before there was memory for it, of the kind that some backend makes for itself.
struct PreparedPlan {
  virtual ~PreparedPlan() = default;
};

/// How a plan is to be made.
///
/// With cuts {4, 9} a range of 12 nodes has three segments, [0, 4), [4, 9) and [9, 12), which are queued one by one: in
/// between others may read what is shown, and write late inputs.
struct PlanOptions {
  /// Nodes before which a run may pause: indices inside the range, ascending, without the first.
  std::vector<int> cuts = {};
  /// Nodes of the range whose values others read at the first cut after them (or at the end): until then they stay.
  std::vector<const Tensor*> shown = {};
  /// Inputs that are written before a segment instead of before the run.
  std::vector<LateInput> late = {};
  /// See MemoryPlanOptions. For memory alone: what runs as one is the caller's to say.
  std::vector<NodeRange> fused = {};
  /// Where compute memory comes from instead of an allocation for this plan alone: inputs and nodes are then valid
  /// until another plan of the arena runs. Must outlive the plan.
  ComputeArena* arena = nullptr;
  /// The last node of a call that runs directly before the range, and the first, a product, of one directly behind it
  /// (collectives' FusedNorm); nullptr: there is none. See PassedForms.
  const Tensor* before = nullptr;
  Tensor* behind = nullptr;
  /// What traces call its runs, before the numbers of the nodes: "step 3".
  std::string label = {};
  /// What a backend may take, and leave empty, instead of planning the range again: made for it, with the same cuts,
  /// shown nodes and late inputs. nullptr: there is none. Backends that make other plans do not look at it. Throws
  /// InvalidArgument for one that was taken before.
  PreparedPlan* prepared = nullptr;
};

/// In which forms of the device's own, in its own bits, columns come and go beside their values. Every run of the plan
/// counts on `before` and leaves `behind`.
struct PassedForms {
  uint32_t before = 0;  ///< PlanOptions::before
  uint32_t behind = 0;  ///< the column that PlanOptions::behind is a product with
};

/// Compiled form of a graph range on one backend: everything that does not change between runs is resolved.
/// Owns the memory that it had to allocate. It may outlive its backend, its graph and what it reads, but is no use
/// without: of these only the graph must be there when it runs, the lack of the others is noticed.
class GraphPlan {
 public:
  explicit GraphPlan(Backend& backend);
  virtual ~GraphPlan() = default;
  GraphPlan(const GraphPlan&) = delete;
  GraphPlan& operator=(const GraphPlan&) = delete;
  Backend& backend() const { return backend_; }
  /// False: it has been destroyed, after all work that was queued on it.
  bool has_backend() const { return !life_.expired(); }
  /// Compute memory that this plan needs on its device(s), bytes.
  virtual size_t allocated_bytes() const = 0;
  /// Pieces that a run can be queued in: one more than there were cuts.
  virtual int segments() const { return 1; }
  /// The first segment before which an input of the graph may be written, on every device that has a copy: until then
  /// its memory serves others. 0 for all but late inputs.
  virtual int writable_from(const Tensor& input) const {
    (void)input;
    return 0;
  }
  virtual PassedForms passed_forms() const { return {}; }
  /// Throws InvalidArgument, naming a tensor, when weights, caches or inputs that were placed before the plan was made
  /// have lost their memory since.
  void check_memory() const {
    for (const Memory& memory : reads_) {
      if (!memory.buffer.is_there()) fail_without(memory);
    }
  }

 protected:
  /// Notes where what the range reads lies. For constructors, when all of it is placed, and Backend::update_plan.
  void note_memory(const GraphRange& range);

 private:
  friend class HeldMemory;
  struct Memory {
    BufferRef buffer;
    std::string tensor;  ///< one of those in it
  };
  [[noreturn]] void fail_without(const Memory& memory) const;

  Backend& backend_;
  std::weak_ptr<const void> life_;
  std::vector<Memory> reads_;
};

/// Holds the buffers that a plan reads (GraphPlan::check_memory) while it runs. Throws InvalidArgument when one has
/// gone.
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

/// Work of one backend written down by start_recording() and stop_recording(): plans, and collectives between backends
/// that are all recording. It refers to the plans and tensors, which must outlive it.
class Recording {
 public:
  virtual ~Recording() = default;
};

}  // namespace shoal
