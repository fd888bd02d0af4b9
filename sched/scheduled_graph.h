// A scheduled graph that is ready to run: a plan on each backend, the copies between backends, and the caller's tensors
// bound to their values. Owned by the Scheduler. Not thread-safe.
//
// A value that crosses from one backend to another goes through a few slots of host memory, one for each run that may
// be in flight (`copies`). In run r, the stream that made the value writes slot r mod copies after its split. The
// stream that needs the value reads the slot just before its split. Events order the streams; the host never waits:
//
//   on A   run 0, write slot 0, run 1, write slot 1, run 2, (slot 0 read?) write slot 0, ...
//   on B                        (written?) read slot 0, run 0,       (written?) read slot 1, run 1, ...
//
// The caller's inputs are in host memory. Each run copies them once when it is queued, for all backends.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "devices/allocate.h"
#include "sched/local_graphs.h"

namespace shoal::sched {

/// Called with an observed node after it was computed. Returns false to stop the run.
using Observer = std::function<bool(const Tensor& node)>;

/// Waits for all backends. Throws the first failure and clears all failures. A cause is preferred over its consequence,
/// such as a collective that ended because another rank failed.
void synchronize_all(std::span<Backend* const> backends);

/// A schedule with its local graphs and plans, prepared before memory is allocated.
struct PreparedGraph {
  Schedule schedule;
  LocalGraphs local;
  std::vector<PreparedPlan*> plans = {};  ///< one for each backend (PlanOptions::prepared), or empty
};

class ScheduledGraph {
 public:
  /// Places the graph's nodes. The graph's inputs must already have memory. `arenas` contains one arena for each
  /// backend. `host` is the type of memory for slots. Throws errors of the backends' create_plan.
  ScheduledGraph(Graph& graph, PreparedGraph prepared, const std::unordered_set<const Tensor*>& observed,
                 std::span<Backend* const> backends, std::span<std::unique_ptr<ComputeArena>> arenas, BufferType& host,
                 int copies);
  /// Waits for queued work.
  ~ScheduledGraph();
  ScheduledGraph(const ScheduledGraph&) = delete;
  ScheduledGraph& operator=(const ScheduledGraph&) = delete;

  /// Queues a run. With an observer the call waits for each observed node. Returns false if the observer stopped the
  /// run.
  bool run(const Observer& observer);
  /// Makes every backend wait for all other backends.
  void meet();

  const Schedule& schedule() const { return schedule_; }
  /// The plan on a backend; nullptr if the backend has no nodes.
  const GraphPlan* plan(int backend) const { return plans_[static_cast<size_t>(backend)].get(); }
  /// Host memory of the slots, in bytes.
  size_t host_bytes() const;

 private:
  /// A tensor that is copied through host memory.
  struct Transfer {
    const Tensor* source = nullptr;  ///< in the local graph of the backend that stores the tensor, or a leaf
    Tensor* target = nullptr;        ///< in the local graph of the backend that needs the tensor
    std::byte* slots = nullptr;      ///< slots of `stride` bytes
    size_t bytes = 0, stride = 0;
    int split = 0;  ///< the split that needs the tensor
  };
  /// Expert ids that the host reads. The backend that computes the ids copies them here at the end of the split, while
  /// every member still has them. Ids in a leaf are read in place.
  struct ChosenIds {
    const Tensor* tensor = nullptr;  ///< in the caller's graph
    Backend* reader = nullptr;       ///< the backend that gets the experts
    const Tensor* source = nullptr;  ///< in the local graph of the backend that computes them; nullptr: a leaf
    Backend* maker = nullptr;
    std::vector<int32_t> values;
    bool known = false;  ///< the host has the values of this run
  };
  /// A weight that is copied directly from host memory: the whole weight, or only the experts in use.
  struct Stream {
    const Tensor* weight = nullptr;
    Tensor* target = nullptr;
    ChosenIds* ids = nullptr;              ///< nullptr: the whole weight is copied
    const SelectParams* select = nullptr;  ///< maps ids to experts
  };
  /// A leaf that is stored on another backend, which reads it in each run.
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
    std::vector<Transfer> inputs;  ///< copied from the caller through the slots of `inputs_`
    std::vector<Transfer> values;  ///< copied from the slots that earlier splits have written
    std::vector<Leaf> leaves;
    std::vector<Stream> streams;
    std::vector<int> waits;                     ///< splits that write `values`
    std::vector<Transfer> results;              ///< written to slots after this split, for later splits
    std::vector<ChosenIds*> chosen;             ///< ids that this split computes
    std::vector<const Tensor*> observed;        ///< nodes of the caller's graph
    std::unique_ptr<Event> written;             ///< recorded when `results` are in their slots
    std::vector<std::unique_ptr<Event>> read;   ///< per slot: recorded when values and leaves have been read
    std::vector<std::unique_ptr<Event>> taken;  ///< per slot: recorded when inputs have been read

    bool reads_slots() const { return !values.empty() || !leaves.empty(); }
  };

  void make_plans(std::span<std::unique_ptr<ComputeArena>> arenas, std::span<PreparedPlan* const> prepared);
  void make_actions(const std::unordered_set<const Tensor*>& observed);
  void add_copy(int split, const Copy& copy, Tensor* target);
  ChosenIds* chosen_ids(const Tensor& ids, Backend& reader);
  void place_slots(BufferType& host);
  void bind();
  void unbind();

  /// See slots_for().
  size_t input_slots() const { return std::max<size_t>(copies_, 2); }
  bool queue(uint64_t run, const Observer& observer);
  void take_inputs(size_t slot);
  void release_inputs(size_t slot);
  /// Makes the split wait for all work of `before`, or does nothing if `before` is nullptr.
  void follow(Action& action, Action* before);
  void bring(Action& action, size_t slot);
  static void stream_experts(Action& action, const Stream& stream);
  void pass_on(Action& action, size_t slot);
  bool show(Action& action, const Observer& observer);

  Graph& graph_;
  GraphClaim claim_;
  Schedule schedule_;
  std::vector<Backend*> backends_;
  std::vector<std::weak_ptr<const void>> lives_;  ///< expire when a backend is destroyed
  size_t copies_;
  LocalGraphs local_;
  std::vector<std::unique_ptr<GraphPlan>> plans_;
  std::vector<Action> actions_;
  std::vector<Transfer> inputs_;  ///< one transfer for each input
  std::unique_ptr<Buffer> slots_;
  std::vector<Tensor*> bound_;                   ///< the caller's nodes that bind() has placed
  std::vector<std::unique_ptr<Event>> meeting_;  ///< one for each backend, created at first use
  std::vector<std::unique_ptr<ChosenIds>> chosen_;
  uint64_t runs_ = 0;
  Action* last_ = nullptr;  ///< the last split queued, in this run or the previous run
};

}  // namespace shoal::sched
