// Scheduler: runs graphs on several backends. It decides where each node runs (schedule.h), allocates, copies values
// that cross from one backend to another, and queues everything asynchronously. A meta device is just one more backend.
//
//   Scheduler scheduler({&meta, &cpu});               // in order of priority; the last can run everything
//   scheduler.reserve(largest_graph);                 // optional: memory is allocated once
//   scheduler.allocate(graph);                        // its inputs have memory now
//   tensor_set(*tokens, ...); scheduler.compute_async(graph); scheduler.get_async(*logits, ...);
//   scheduler.synchronize();
//
// Memory: one arena for each backend, shared by all graphs. A graph's outputs are valid until another graph runs here;
// its other nodes may be overwritten by later nodes of the same run. Inputs may be written again as soon as
// compute_async has returned, because each run copies them. Plans are cached by graph identity, so alternating graphs
// are planned only once.
//
// One thread at a time. Graphs must outlive the work queued on them. The backends outlive the scheduler and should not
// be used for anything else between its calls and synchronize().
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "sched/scheduled_graph.h"

namespace shoal::sched {

struct SchedulerOptions {
  /// Number of runs that may be in flight between two backends: 1, or up to 1024 for pipelines.
  int copies = 1;
  bool op_offload = true;
  /// Type of each backend's compute memory, for simple backends; nullptr or missing: the device's default type.
  std::vector<BufferType*> buffer_types = {};
  size_t kept_graphs = 16;
};

/// Called in two ways. Before a run, with `ask`: returns true if the caller wants to observe the node (views of leaves
/// are not offered). During the run, for each observed node after it was computed: tensor_get can read the node,
/// whichever backend computed it; returning false stops the run.
using EvalCallback = std::function<bool(const Tensor& node, bool ask)>;

class Scheduler {
 public:
  /// Throws InvalidArgument for no backends, a backend listed twice, a number of copies outside [1, 1024], or a buffer
  /// type that a backend cannot use.
  explicit Scheduler(std::vector<Backend*> backends, const SchedulerOptions& options = {});
  ~Scheduler();

  /// Sets the backend of a node until reset(); nullptr lets the scheduler choose. The cached plan of the node's graph
  /// is replaced. For a view, set the backend of its base. If several nodes write into one cache, set the backend of
  /// the first. Throws InvalidArgument for a backend that is not in this scheduler.
  void set_backend(const Tensor& node, const Backend* backend);
  /// The backend of a node of the graph scheduled last; nullptr for leaves and their views.
  Backend* backend_of(const Tensor& node) const;
  /// Sets the callback; an empty callback observes no node. With a callback compute_async waits for each observed node.
  /// A run keeps the callback with which it started. Inside a callback reserve, allocate, compute and reset throw
  /// InvalidArgument.
  void set_eval_callback(EvalCallback callback);

  /// Allocates memory for this graph, which should be the largest, and caches no plan. Returns false if memory is
  /// short. Throws all other errors, including failures of earlier work.
  bool reserve(Graph& graph);
  /// The schedule of a graph, without allocating anything. Throws like make_schedule.
  Schedule split(const Graph& graph) const;
  /// Plans and places the graph, unless that is already done. Throws errors of planning, such as OutOfMemory.
  void allocate(Graph& graph);
  /// Like allocate(graph) for a graph that was not scheduled before, with a schedule that was made earlier for the same
  /// backends. With an evaluation callback or set_backend(), a new schedule is made.
  void allocate(Graph& graph, PreparedGraph prepared);
  /// Queues one run. Returns false if the evaluation callback stopped it. Throws errors of planning, and failures of
  /// work that it has to wait for: with a callback, on devices without events, and when it copies selected experts.
  bool compute_async(Graph& graph);
  /// Runs the graph and waits for it. Returns kAborted also if the evaluation callback stopped the run.
  Status compute(Graph& graph);
  /// Waits for all queued work. Throws the first failure and clears all failures. A cause is preferred over its
  /// consequence.
  void synchronize();
  /// Drops all backends set by set_backend() and all plans. Memory stays reserved.
  void reset();

  /// Allocates host memory with fast copies to and from the backends' devices, or ordinary memory if fast memory is
  /// short. It must be destroyed before the scheduler. Throws OutOfMemory.
  std::unique_ptr<Buffer> allocate_host(size_t bytes);
  /// Reads a node or output in stream order; `data` must stay valid until synchronize().
  void get_async(const Tensor& tensor, void* data, size_t offset, size_t size);

  int backends() const { return static_cast<int>(backends_.size()); }
  /// This function and the next three throw InvalidArgument for an index outside [0, backends()).
  Backend& backend(int index) const { return *backends_[checked(index)]; }
  BufferType& buffer_type(int index) const { return arenas_[checked(index)]->type(); }
  /// Bytes of compute memory reserved on a backend, in total and for each member.
  size_t buffer_size(int index) const { return arenas_[checked(index)]->bytes(); }
  std::vector<size_t> member_sizes(int index) const { return arenas_[checked(index)]->bytes_per_member(); }
  /// Bytes of host memory for the cached graphs: their inputs, and slots for values that cross between backends.
  size_t host_bytes() const;
  /// The schedule of the graph scheduled last.
  const Schedule& schedule() const;
  const ScheduledGraph& scheduled() const;
  int splits() const { return static_cast<int>(schedule().splits.size()); }
  /// Number of runs that may be in flight if the schedule is a pipeline (copies_for).
  int copies() const { return options_.copies; }
  /// Number of plans made so far. A run of a cached graph does not increase it.
  uint64_t plans_made() const { return plans_made_; }

 private:
  struct Entry;
  class Inputs;
  class Busy;

  /// The backends. Throws InvalidArgument if a backend has been destroyed.
  std::span<Backend* const> live() const;
  void place_inputs(Graph& graph);

  std::unordered_map<const Tensor*, int> user_for(const Graph& graph) const;
  ScheduleOptions schedule_options(const Graph& graph, const std::unordered_set<const Tensor*>& observed) const;
  /// Finds or makes the entry and moves it to the front of `entries_`. The caller passes a copy of the scheduler's
  /// callback, because a callback may replace the scheduler's callback.
  Entry& entry(Graph& graph, const EvalCallback& callback, PreparedGraph* prepared = nullptr);
  std::unique_ptr<ScheduledGraph> make(Graph& graph, const std::unordered_set<const Tensor*>& observed,
                                       PreparedGraph* prepared = nullptr);
  size_t checked(int index) const;
  BufferType& host_type();  ///< fast host memory of a device, or ordinary memory
  BufferType& pageable_type();
  void make_room();
  size_t reserved() const;

  std::vector<Backend*> backends_;
  std::vector<std::weak_ptr<const void>> lives_;  ///< expire when a backend is destroyed
  std::vector<Device*> devices_;
  SchedulerOptions options_;
  EvalCallback callback_;
  struct UserChoice {
    int backend, id;
    std::string name;
  };
  std::unordered_map<const Tensor*, UserChoice> user_;
  std::vector<std::unique_ptr<ComputeArena>> arenas_;
  std::unique_ptr<BufferType> pageable_;  ///< created at first use
  std::list<Inputs> inputs_;
  std::list<Entry> entries_;  ///< most recently used first
  const void* latest_run_ = nullptr;
  bool busy_ = false;  ///< see Busy
  uint64_t plans_made_ = 0;
};

}  // namespace shoal::sched
