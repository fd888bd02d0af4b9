// Scheduler: runs graphs on several backends. It decides where each node runs (schedule.h), allocates, copies what
// crosses from one backend to another, and queues everything asynchronously. To it a meta device is one more backend.
//
//   Scheduler scheduler({&meta, &cpu});               // in order of priority; the last can run everything
//   scheduler.reserve(largest_graph);                 // optional: memory is allocated once
//   scheduler.allocate(graph);                        // its inputs have memory now
//   tensor_set(*tokens, ...); scheduler.compute_async(graph); scheduler.get_async(*logits, ...);
//   scheduler.synchronize();
//
// Memory: one arena for each backend, shared by all graphs. A graph's nodes are valid until another graph runs here, of
// those that are no outputs many only until later nodes of the same run. Inputs may be written again as soon as
// compute_async has returned: a run takes a copy. Plans are kept by graph identity, so that graphs that alternate are
// planned once each.
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
  /// Runs that may be on their way at a time between two backends: 1, or up to 1024 for pipelines.
  int copies = 1;
  bool op_offload = true;
  /// What each backend's compute memory is made of, for simple backends; nullptr or none: the device's own type.
  std::vector<BufferType*> buffer_types = {};
  size_t kept_graphs = 16;
};

/// Asked twice: with `ask` before a run, whether the caller wants to see the node (of views of leaves it is not asked);
/// then, for those it wants, when the node has been computed, complete wherever it lies (tensor_get works); false stops
/// the run.
using EvalCallback = std::function<bool(const Tensor& node, bool ask)>;

class Scheduler {
 public:
  /// Throws InvalidArgument for no backends, one listed twice, a number of copies outside [1, 1024], or a buffer type
  /// that a backend cannot use.
  explicit Scheduler(std::vector<Backend*> backends, const SchedulerOptions& options = {});
  ~Scheduler();

  /// The backend that a node should run on, nullptr: whichever is best. Until reset(); a kept plan of its graph is made
  /// anew. Of views, and of further writes into a cache, set what they see or the first write. Throws InvalidArgument
  /// for a backend that is not one of ours.
  void set_backend(const Tensor& node, const Backend* backend);
  /// Where a node of the graph scheduled last runs, or will run; nullptr for leaves and their views.
  Backend* backend_of(const Tensor& node) const;
  /// Empty: none is observed. With a callback compute_async waits for each observed node. A run keeps the callback that
  /// it began with. Inside a callback reserve, allocate, compute and reset throw InvalidArgument.
  void set_eval_callback(EvalCallback callback);

  /// Allocates what this graph, the largest there will be, needs; keeps no plan. False: not enough memory. Throws what
  /// else goes wrong, failures of earlier work among them.
  bool reserve(Graph& graph);
  /// What would run where; allocates nothing. Throws as make_schedule.
  Schedule split(const Graph& graph) const;
  /// Plans and places the graph, unless that is done. Throws what planning throws: OutOfMemory among others.
  void allocate(Graph& graph);
  /// The same for a graph that is new here, with a schedule for our backends that was made before; with an evaluation
  /// callback or set_backend() a new one is made.
  void allocate(Graph& graph, PreparedGraph prepared);
  /// Queues one run. False: the evaluation callback stopped it. Throws what planning throws, and failures of work that
  /// it has to wait for: with a callback, on devices without events, and where it copies chosen experts.
  bool compute_async(Graph& graph);
  /// Runs to the end; kAborted also where the evaluation callback stopped it.
  Status compute(Graph& graph);
  /// Waits for everything queued. Throws the first failure, a cause before what follows from it, and clears all.
  void synchronize();
  /// Forgets set_backend() and all plans; memory stays reserved.
  void reset();

  /// Host memory that the backends' devices, or members of them, copy to and from quickly; ordinary memory where they
  /// have none of it left. It must go before the scheduler. Throws OutOfMemory.
  std::unique_ptr<Buffer> allocate_host(size_t bytes);
  /// Reads a node or output in stream order; `data` must stay valid until synchronize().
  void get_async(const Tensor& tensor, void* data, size_t offset, size_t size);

  int backends() const { return static_cast<int>(backends_.size()); }
  /// This and the next three throw InvalidArgument for an index outside [0, backends()).
  Backend& backend(int index) const { return *backends_[checked(index)]; }
  BufferType& buffer_type(int index) const { return arenas_[checked(index)]->type(); }
  /// Compute memory reserved on a backend, bytes; for each of its members.
  size_t buffer_size(int index) const { return arenas_[checked(index)]->bytes(); }
  std::vector<size_t> member_sizes(int index) const { return arenas_[checked(index)]->bytes_per_member(); }
  /// Host memory of the graphs that are kept: their inputs, and slots for what crosses between backends.
  size_t host_bytes() const;
  /// Of the graph scheduled last.
  const Schedule& schedule() const;
  const ScheduledGraph& scheduled() const;
  int splits() const { return static_cast<int>(schedule().splits.size()); }
  /// Runs that may be on their way at a time, where the schedule is a pipeline (copies_for).
  int copies() const { return options_.copies; }
  /// Plans made so far: stays the same while graphs are found among those kept.
  uint64_t plans_made() const { return plans_made_; }

 private:
  struct Entry;
  class Inputs;
  class Busy;

  /// The backends. Throws InvalidArgument when one has been destroyed.
  std::span<Backend* const> live() const;
  void place_inputs(Graph& graph);

  std::unordered_map<const Tensor*, int> user_for(const Graph& graph) const;
  ScheduleOptions schedule_options(const Graph& graph, const std::unordered_set<const Tensor*>& observed) const;
  /// Finds or makes; becomes the first of `entries_`. `callback` may replace the scheduler's.
  Entry& entry(Graph& graph, const EvalCallback& callback, PreparedGraph* prepared = nullptr);
  std::unique_ptr<ScheduledGraph> make(Graph& graph, const std::unordered_set<const Tensor*>& observed,
                                       PreparedGraph* prepared = nullptr);
  size_t checked(int index) const;
  BufferType& host_type();  ///< of what devices copy to and from quickly, or of ordinary memory
  BufferType& pageable_type();
  void make_room();
  size_t reserved() const;

  std::vector<Backend*> backends_;
  std::vector<std::weak_ptr<const void>> lives_;  ///< of the backends
  std::vector<Device*> devices_;
  SchedulerOptions options_;
  EvalCallback callback_;
  struct UserChoice {
    int backend, id;
    std::string name;
  };
  std::unordered_map<const Tensor*, UserChoice> user_;
  std::vector<std::unique_ptr<ComputeArena>> arenas_;
  std::unique_ptr<BufferType> pageable_;  ///< once it is asked for
  std::list<Inputs> inputs_;
  std::list<Entry> entries_;  ///< most recently used first
  const void* latest_run_ = nullptr;
  bool busy_ = false;  ///< see Busy
  uint64_t plans_made_ = 0;
};

}  // namespace shoal::sched
