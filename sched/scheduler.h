// A Scheduler runs graphs on several backends. It chooses the backend of each node (schedule.h), allocates memory,
// copies values between backends, and queues all work asynchronously. For the scheduler, a meta device is an ordinary
// backend.
//
//   Scheduler scheduler({&meta, &cpu});               // in order of priority; the last backend can run all nodes
//   scheduler.reserve(largest_graph);                 // optional: memory is allocated once
//   scheduler.allocate(graph);                        // the graph's inputs have memory now
//   tensor_set(*tokens, ...); scheduler.compute_async(graph); scheduler.get_async(*logits, ...);
//   scheduler.synchronize();
//
// All graphs share one arena of memory on each backend. The outputs of a graph are valid until another graph runs on
// this scheduler. The memory of all other nodes may be overwritten by later nodes of the same run. Each run copies the
// inputs. So inputs may be written again after compute_async has returned. The scheduler caches the plans of the
// kept_graphs latest graphs (SchedulerOptions). So it plans each of these graphs only once, even if the caller
// alternates between them.
//
// A scheduler must not be used by several threads at the same time. A graph must outlive its queued work. The backends
// must outlive the scheduler. After a call of the scheduler, no other code should use the backends until synchronize().
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "sched/scheduled_graph.h"

namespace shoal::sched {

struct SchedulerOptions {
  /// Maximum number of runs in flight between two backends. Values from 1 to 1024 are allowed. If a schedule is not a
  /// pipeline (Schedule::is_pipeline), the maximum is always 1.
  int copies = 1;
  bool op_offload = true;
  /// Buffer type of each backend's compute memory. If an element is nullptr or missing, the backend uses the default
  /// type of its device. The element must be nullptr or missing for a backend with members (a meta device).
  std::vector<BufferType*> buffer_types = {};
  size_t kept_graphs = 16;
};

/// The scheduler calls this callback in two situations:
/// - Before a run, with `ask` = true. The callback returns true to observe the node. The scheduler does not ask about
///   views of leaves.
/// - During the run, with `ask` = false, after each observed node was computed. The callback may read the node with
///   tensor_get. The node may be on any backend. If the callback returns false, the run stops.
using EvalCallback = std::function<bool(const Tensor& node, bool ask)>;

class Scheduler {
 public:
  /// Throws InvalidArgument if there are no backends, if a backend is listed twice, if the number of copies is outside
  /// [1, 1024], or if a backend cannot use its buffer type.
  explicit Scheduler(std::vector<Backend*> backends, const SchedulerOptions& options = {});
  ~Scheduler();

  /// Sets the backend of a node until reset(). With nullptr, the scheduler chooses the backend. The next use of the
  /// node's graph replaces the graph's cached plan. For a view, callers set the backend of its base. If several nodes
  /// write into one cache, callers set the backend of the first node. Throws InvalidArgument for a backend that is not
  /// in this scheduler.
  void set_backend(const Tensor& node, const Backend* backend);
  /// Returns the backend of a node of the graph that schedule() describes. Returns nullptr for leaves, for nodes of
  /// other graphs, and for views of leaves that have no backend (Assignment::backend).
  Backend* backend_of(const Tensor& node) const;
  /// Sets the callback. An empty callback observes no node. With a callback, compute_async waits for each observed
  /// node. A run uses the callback that was set when the run started. Inside a callback, reserve, allocate, compute and
  /// reset throw InvalidArgument.
  void set_eval_callback(EvalCallback callback);

  /// Allocates the memory that this graph needs, but does not cache a plan. The graph should be the largest graph.
  /// Returns false if memory is insufficient. Throws all other errors, including failures of earlier work.
  bool reserve(Graph& graph);
  /// Makes the schedule of a graph without allocating memory. Throws the errors of make_schedule.
  Schedule split(const Graph& graph) const;
  /// Plans and places the graph. Does nothing if the cached plan of the graph is still valid. Throws errors of
  /// planning, such as OutOfMemory.
  void allocate(Graph& graph);
  /// Like allocate(graph), but uses `prepared`, which was made earlier for the same backends. The graph must not have
  /// been scheduled before. If the evaluation callback observes nodes of the graph, or if set_backend() has set the
  /// backend of a node, the call ignores `prepared` and makes a new schedule.
  void allocate(Graph& graph, PreparedGraph prepared);
  /// Queues one run. Returns false if the evaluation callback stopped the run. Throws errors of planning. The call
  /// waits for queued work if there is a callback, if a device has no events, or if selected experts are copied. If the
  /// call waits, it also throws the failures of this work.
  bool compute_async(Graph& graph);
  /// Runs the graph and waits for the run. If the evaluation callback stopped the run, returns kAborted.
  Status compute(Graph& graph);
  /// Waits for all queued work, and throws failures in the same way as synchronize_all().
  void synchronize();
  /// Destroys all cached plans and discards the backends set by set_backend(). Does not free the reserved memory.
  void reset();

  /// Allocates pinned host memory, which the backends' devices can copy fast. If pinned memory is unavailable or
  /// insufficient, allocates ordinary memory. The buffer must be destroyed before the scheduler. Throws OutOfMemory.
  std::unique_ptr<Buffer> allocate_host(size_t bytes);
  /// Reads a node or output in stream order. `data` must stay valid until synchronize().
  void get_async(const Tensor& tensor, void* data, size_t offset, size_t size);

  int backends() const { return static_cast<int>(backends_.size()); }
  /// The functions backend, buffer_type, buffer_size and member_sizes throw InvalidArgument for an index outside [0,
  /// backends()).
  Backend& backend(int index) const { return *backends_[checked(index)]; }
  BufferType& buffer_type(int index) const { return arenas_[checked(index)]->type(); }
  /// buffer_size() returns the number of bytes of compute memory that are reserved on a backend. member_sizes() returns
  /// this number for each member of the backend.
  size_t buffer_size(int index) const { return arenas_[checked(index)]->bytes(); }
  std::vector<size_t> member_sizes(int index) const { return arenas_[checked(index)]->bytes_per_member(); }
  /// Bytes of host memory for the graphs' inputs and for the slots through which backends pass values.
  size_t host_bytes() const;
  /// The schedule of the latest graph that was allocated or run.
  const Schedule& schedule() const;
  const ScheduledGraph& scheduled() const;
  int splits() const { return static_cast<int>(schedule().splits.size()); }
  /// Maximum number of runs in flight if the schedule is a pipeline (copies_for).
  int copies() const { return options_.copies; }
  /// Number of plans made so far. A run of a cached graph does not increase this number.
  uint64_t plans_made() const { return plans_made_; }

 private:
  struct Entry;
  class Inputs;
  class Busy;

  /// Returns the backends. Throws InvalidArgument if a backend has been destroyed.
  std::span<Backend* const> live() const;
  void place_inputs(Graph& graph);

  std::unordered_map<const Tensor*, int> user_for(const Graph& graph) const;
  ScheduleOptions schedule_options(const Graph& graph, const std::unordered_set<const Tensor*>& observed) const;
  /// Finds or makes the entry of the graph. Moves this entry to the front of `entries_`. The caller passes a copy of
  /// the scheduler's callback, because this callback may set another callback.
  Entry& entry(Graph& graph, const EvalCallback& callback, PreparedGraph* prepared = nullptr);
  std::unique_ptr<ScheduledGraph> make(Graph& graph, const std::unordered_set<const Tensor*>& observed,
                                       PreparedGraph* prepared = nullptr);
  size_t checked(int index) const;
  BufferType& host_type();  ///< pinned host memory of a device, or ordinary memory if no device has pinned memory
  BufferType& pageable_type();
  void make_room();
  size_t reserved() const;

  std::vector<Backend*> backends_;
  std::vector<std::weak_ptr<const void>> lives_;  ///< one pointer for each backend; it expires when the backend is
                                                  ///< destroyed
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
  std::list<Entry> entries_;  ///< the most recently used entry is first
  const void* latest_run_ = nullptr;
  bool busy_ = false;  ///< true while a Busy exists
  uint64_t plans_made_ = 0;
};

}  // namespace shoal::sched
