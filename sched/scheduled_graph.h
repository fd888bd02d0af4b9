// A scheduled graph made ready to run: a plan on each backend, the copies between them, and the caller's tensors bound
// to where their values are. Owned by the Scheduler; one thread.
//
// A value that crosses from one backend to another goes through host memory in a few slots, one for each run that may
// be on its way (`copies`): the stream that made it writes slot r mod copies when its split is done, the stream that
// needs it reads the slot just before its own. Events keep both in order; the host waits for nothing:
//
//   on A   run 0, write slot 0, run 1, write slot 1, run 2, (slot 0 read?) write slot 0, ...
//   on B                        (written?) read slot 0, run 0,       (written?) read slot 1, run 1, ...
//
// The caller's inputs lie in host memory; each run takes one copy of them when it is queued, for all backends.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "devices/allocate.h"
#include "sched/local_graphs.h"

namespace shoal::sched {

/// Shown an observed node after it was computed; false stops the run.
using Observer = std::function<bool(const Tensor& node)>;

/// Waits for all of them. Throws the first failure, a cause before what follows from it (a collective that another
/// one's failure ended), and clears all.
void synchronize_all(std::span<Backend* const> backends);

/// A schedule and what follows from it before there is any memory.
struct PreparedGraph {
  Schedule schedule;
  LocalGraphs local;
  std::vector<PreparedPlan*> plans = {};  ///< of each backend (PlanOptions::prepared), or none at all
};

class ScheduledGraph {
 public:
  /// Places the graph's nodes; its inputs have memory already. `arenas`: one for each backend; `host`: where copies lie
  /// on their way. Throws what the backends' create_plan throws.
  ScheduledGraph(Graph& graph, PreparedGraph prepared, const std::unordered_set<const Tensor*>& observed,
                 std::span<Backend* const> backends, std::span<std::unique_ptr<ComputeArena>> arenas, BufferType& host,
                 int copies);
  /// Waits for what is queued.
  ~ScheduledGraph();
  ScheduledGraph(const ScheduledGraph&) = delete;
  ScheduledGraph& operator=(const ScheduledGraph&) = delete;

  /// Queues a run. With an observer it waits for each observed node. False: the observer stopped the run.
  bool run(const Observer& observer);
  /// Queues on every backend a wait for all others.
  void meet();

  const Schedule& schedule() const { return schedule_; }
  /// Of the plan on a backend; nullptr where it has nothing to do.
  const GraphPlan* plan(int backend) const { return plans_[static_cast<size_t>(backend)].get(); }
  /// Host memory for copies.
  size_t host_bytes() const;

 private:
  /// A tensor on its way through host memory.
  struct Transfer {
    const Tensor* source = nullptr;  ///< in the local graph of the backend that has it, or a leaf
    Tensor* target = nullptr;        ///< in the local graph of the backend that needs it
    std::byte* slots = nullptr;      ///< each of `stride` bytes
    size_t bytes = 0, stride = 0;
    int split = 0;  ///< that needs it
  };
  /// Ids of experts, for the host. The backend that makes them copies them here behind the split that does, while
  /// they are alive on each of its members; a leaf is read where it is.
  struct ChosenIds {
    const Tensor* tensor = nullptr;  ///< of the caller's graph
    Backend* reader = nullptr;       ///< gets the experts
    const Tensor* source = nullptr;  ///< in the local graph of the backend that makes them; nullptr: a leaf
    Backend* maker = nullptr;
    std::vector<int32_t> values;
    bool known = false;  ///< in this run
  };
  /// A weight that is copied straight from host memory, or those experts of it that are used.
  struct Stream {
    const Tensor* weight = nullptr;
    Tensor* target = nullptr;
    ChosenIds* ids = nullptr;              ///< nullptr: all of the weight is copied
    const SelectParams* select = nullptr;  ///< which expert an id names
  };
  /// A leaf in other memory, fetched by its own backend each time.
  struct Leaf {
    Transfer transfer;
    Backend* home = nullptr;
    std::unique_ptr<Event> fetched;
  };
  /// One split, ready.
  struct Action {
    Backend* backend = nullptr;
    GraphPlan* plan = nullptr;
    int segment = 0;
    std::vector<Transfer> inputs;  ///< from the caller, in the slots of `inputs_`
    std::vector<Transfer> values;  ///< from earlier splits: in their slots by then
    std::vector<Leaf> leaves;
    std::vector<Stream> streams;
    std::vector<int> waits;                     ///< splits that write `values`
    std::vector<Transfer> results;              ///< for later splits, written when this one is done
    std::vector<ChosenIds*> chosen;             ///< made by this split
    std::vector<const Tensor*> observed;        ///< of the caller's graph
    std::unique_ptr<Event> written;             ///< `results` are in their slots
    std::vector<std::unique_ptr<Event>> read;   ///< values and leaves have been read from their slots; one for each
    std::vector<std::unique_ptr<Event>> taken;  ///< inputs have been read from theirs

    bool reads_slots() const { return !values.empty() || !leaves.empty(); }
  };

  void make_plans(std::span<std::unique_ptr<ComputeArena>> arenas, std::span<PreparedPlan* const> prepared);
  void make_actions(const std::unordered_set<const Tensor*>& observed);
  void add_copy(int split, const Copy& copy, Tensor* target);
  ChosenIds* chosen_ids(const Tensor& ids, Backend& reader);
  void place_slots(BufferType& host);
  void bind();
  void unbind();

  /// See slots_for.
  size_t input_slots() const { return std::max<size_t>(copies_, 2); }
  bool queue(uint64_t run, const Observer& observer);
  void take_inputs(size_t slot);
  void release_inputs(size_t slot);
  /// What the split does comes after all of `before`, if there is one.
  void follow(Action& action, Action* before);
  void bring(Action& action, size_t slot);
  static void bring_experts(Action& action, const Stream& stream);
  void pass_on(Action& action, size_t slot);
  bool show(Action& action, const Observer& observer);

  Graph& graph_;
  GraphClaim claim_;
  Schedule schedule_;
  std::vector<Backend*> backends_;
  std::vector<std::weak_ptr<const void>> lives_;  ///< of the backends
  size_t copies_;
  LocalGraphs local_;
  std::vector<std::unique_ptr<GraphPlan>> plans_;
  std::vector<Action> actions_;
  std::vector<Transfer> inputs_;  ///< the first of each input's
  std::unique_ptr<Buffer> slots_;
  std::vector<Tensor*> bound_;                   ///< nodes of the caller's that have memory from here
  std::vector<std::unique_ptr<Event>> meeting_;  ///< one for each backend, made at first use
  std::vector<std::unique_ptr<ChosenIds>> chosen_;
  uint64_t runs_ = 0;
  Action* last_ = nullptr;  ///< queued latest, in this run or the one before
};

}  // namespace shoal::sched
