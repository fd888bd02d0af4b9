// A scheduled graph that is ready to run. It contains a plan on each backend and the copies between backends. It also
// makes the caller's tensors aliases of the computed tensors. The Scheduler owns this object. Not thread-safe.
//
// A value that one backend passes to another backend is copied through slots in host memory. A value has one slot for
// each run that may be in flight (`copies`). In run r, the stream that computes the value writes slot r % copies after
// its split. The stream that needs the value reads this slot just before its split. Events order the two streams, so
// the host does not wait:
//
//   on A   run 0, write slot 0, run 1, write slot 1, run 2, (slot 0 read?) write slot 0, ...
//   on B                        (written?) read slot 0, run 0,       (written?) read slot 1, run 1, ...
//
// The caller's inputs are in host memory. When a run is queued, the host copies each input to a slot once. All backends
// read this slot.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "devices/allocate.h"
#include "sched/local_graphs.h"

namespace shoal::sched {

/// Receives an observed node after the node was computed. Returns false to stop the run.
using Observer = std::function<bool(const Tensor& node)>;

/// Waits for all backends and clears all failures. If there were failures, throws the first failure that is not a
/// CommError. If all failures are CommErrors, throws the first of them. A CommError is often a consequence: a
/// collective fails if another rank has failed.
void synchronize_all(std::span<Backend* const> backends);

/// A schedule, its local graphs and their plans, all made before memory is allocated.
struct PreparedGraph {
  Schedule schedule;
  LocalGraphs local;
  std::vector<PreparedPlan*> plans = {};  ///< one plan for each backend (PlanOptions::prepared), or empty
};

class ScheduledGraph {
 public:
  /// Places the graph's nodes. The graph's inputs must already have memory. `arenas` contains one arena for each
  /// backend. `host` is the buffer type of the slots. Throws the errors of Recorder::create_plan().
  ScheduledGraph(Graph& graph, PreparedGraph prepared, const std::unordered_set<const Tensor*>& observed,
                 std::span<Backend* const> backends, std::span<std::unique_ptr<ComputeArena>> arenas, BufferType& host,
                 int copies);
  /// Waits for queued work.
  ~ScheduledGraph();
  ScheduledGraph(const ScheduledGraph&) = delete;
  ScheduledGraph& operator=(const ScheduledGraph&) = delete;

  /// Queues a run. With an observer, the call waits for each observed node. Returns false if the observer stopped the
  /// run.
  bool run(const Observer& observer);
  /// Makes every backend wait for all other backends.
  void meet();

  const Schedule& schedule() const { return schedule_; }
  /// The plan on a backend; nullptr if the backend has no nodes.
  const GraphPlan* plan(int backend) const { return plans_[static_cast<size_t>(backend)].get(); }
  /// Number of bytes of host memory that the slots need.
  size_t host_bytes() const;

 private:
  /// A tensor that is copied through host memory.
  struct Transfer {
    const Tensor* source = nullptr;  ///< a leaf, or a tensor in the local graph of the backend that stores the tensor
    Tensor* target = nullptr;        ///< a tensor in the local graph of the backend that receives the copy
    std::byte* slots = nullptr;      ///< address of the first slot; each slot has `stride` bytes
    size_t bytes = 0, stride = 0;
    int split = 0;  ///< number of the split that reads the copy
  };
  /// Ids of experts that the host reads before it copies the experts. At the end of the split that computes the ids,
  /// the backend of this split copies the ids to `values`. At this time, every member of the backend still has the ids.
  /// If the ids are a leaf, the host copies the leaf to `values`.
  struct ChosenIds {
    const Tensor* tensor = nullptr;  ///< the ids in the caller's graph
    Backend* reader = nullptr;       ///< the backend to which the experts are copied
    const Tensor* source = nullptr;  ///< the ids in the local graph of `maker`; nullptr if the ids are a leaf
    Backend* maker = nullptr;
    std::vector<int32_t> values;
    bool known = false;  ///< whether `values` contains the ids of this run
  };
  /// A weight that is copied directly from host memory, without a slot. If `ids` is nullptr, the whole weight is
  /// copied. Otherwise, only the selected experts are copied.
  struct Stream {
    const Tensor* weight = nullptr;
    Tensor* target = nullptr;
    ChosenIds* ids = nullptr;              ///< nullptr if the weight is copied as a whole
    const SelectParams* select = nullptr;  ///< maps ids to experts
  };
  /// A leaf that another backend (`home`) stores. In each run, `home` copies the leaf to a slot.
  struct Leaf {
    Transfer transfer;
    Backend* home = nullptr;
    std::unique_ptr<Event> fetched;
  };
  /// One split, ready to run.
  struct Action {
    Backend* backend = nullptr;
    GraphPlan* plan = nullptr;
    int segment = 0;
    std::vector<Transfer> inputs;  ///< the caller's inputs that this split reads; each is copied from a slot of
                                   ///< `inputs_`
    std::vector<Transfer> values;  ///< values that earlier splits have written to slots; each value is copied from its
                                   ///< slot
    std::vector<Leaf> leaves;
    std::vector<Stream> streams;
    std::vector<int> waits;                     ///< numbers of the splits that write `values`
    std::vector<Transfer> results;              ///< values of this split that later splits read; each value is copied
                                                ///< to its slot after this split
    std::vector<ChosenIds*> chosen;             ///< ids that this split computes
    std::vector<const Tensor*> observed;        ///< observed nodes of the caller's graph
    std::unique_ptr<Event> written;             ///< the event is recorded after `results` were written to their slots
    std::vector<std::unique_ptr<Event>> read;   ///< one event for each slot; recorded after `values` and `leaves` were
                                                ///< read from the slot
    std::vector<std::unique_ptr<Event>> taken;  ///< one event for each slot; recorded after a run that reads `inputs`
                                                ///< from the slot

    bool reads_slots() const { return !values.empty() || !leaves.empty(); }
  };

  void make_plans(std::span<std::unique_ptr<ComputeArena>> arenas, std::span<PreparedPlan* const> prepared);
  void make_actions(const std::unordered_set<const Tensor*>& observed);
  void add_copy(int split, const Copy& copy, Tensor* target);
  ChosenIds* chosen_ids(const Tensor& ids, Backend& reader);
  void place_slots(BufferType& host);
  void bind();
  void unbind();

  /// Number of slots of each input; see slots_for().
  size_t input_slots() const { return std::max<size_t>(copies_, 2); }
  bool queue(uint64_t run, const Observer& observer);
  void take_inputs(size_t slot);
  void release_inputs(size_t slot);
  /// Makes `action` wait for all queued work of the split `before`. Does nothing if `before` is nullptr.
  void follow(Action& action, Action* before);
  void bring(Action& action, size_t slot);
  static void stream_experts(Action& action, const Stream& stream);
  void pass_on(Action& action, size_t slot);
  bool show(Action& action, const Observer& observer);

  Graph& graph_;
  GraphClaim claim_;
  Schedule schedule_;
  std::vector<Backend*> backends_;
  std::vector<std::weak_ptr<const void>> lives_;  ///< one pointer for each backend; it expires when the backend is
                                                  ///< destroyed
  size_t copies_;
  LocalGraphs local_;
  std::vector<std::unique_ptr<GraphPlan>> plans_;
  std::vector<Action> actions_;
  std::vector<Transfer> inputs_;  ///< one transfer for each input
  std::unique_ptr<Buffer> slots_;
  std::vector<Tensor*> bound_;                   ///< the caller's nodes that bind() has placed
  std::vector<std::unique_ptr<Event>> meeting_;  ///< one event for each backend, created at first use
  std::vector<std::unique_ptr<ChosenIds>> chosen_;
  uint64_t runs_ = 0;
  Action* last_ = nullptr;  ///< the split that was queued last, in this run or the previous run
};

}  // namespace shoal::sched
