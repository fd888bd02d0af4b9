// Backend: one in-order stream of work on a device, as three interfaces: DeviceStream (copies and order), Recorder
// (plans) and HostStream (host functions). A new backend overrides the five pure functions of the first two, and others
// as it can; examples/plugin/simple.cpp is a whole one. Calls named *_async queue work and return; work queued on
// one backend runs in order, work on different backends runs at the same time unless events order it.
// One thread at a time may queue work on a backend. The first failure of queued work is kept, later work
// is skipped, and the next synchronize() throws the failure and clears it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "devices/graph_plan.h"
#include "devices/plan_cache.h"
#include "devices/trace.h"

namespace shoal {

class Backend;
class Device;

enum class Status : uint8_t { kSuccess, kFailed, kAllocationFailed, kAborted };
/// Runs `work`; failures of devices and collectives as a status. Lets other exceptions through.
Status status_of(const std::function<void()>& work);

/// A mark in a backend's stream. Record, then others wait. Reusable: a wait refers to the latest record made
/// before it was queued. Waiting for an event never recorded returns at once.
class Event {
 public:
  virtual ~Event() = default;
  virtual Device& device() const = 0;
  virtual void record(Backend& backend) = 0;  ///< queued on `backend` (of this event's device)
  virtual void wait(Backend& backend) = 0;    ///< `backend` (any device) waits, without the host
  virtual void synchronize() = 0;             ///< the host waits
};

/// Asked while a graph runs, by a thread of the device, before each node: true stops the run. Must be quick and not
/// throw, and not call the backend. A backend that stands for several asks from a thread of each, at the same time.
using AbortCallback = std::function<bool()>;

/// A host function run in stream order. `failed`: earlier work of the stream failed; the task must not do its
/// work then but may tell others (a collective aborts its peers). It may throw, which fails the stream.
struct HostTask {
  using Function = void (*)(void* object, const void* argument, bool failed);
  /// Throws InvalidArgument for no function.
  HostTask(Function run, void* object, const void* argument) : run(run), object(object), argument(argument) {
    if (run == nullptr) fail<InvalidArgument>("a host task needs a function, got none");
  }

  Function run;
  void* object;
  const void* argument;
};

/// Queues copies of bytes and orders streams. Name, device and synchronize() are all that a stream must have.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual std::string name() const = 0;
  virtual Device& device() const = 0;
  /// Waits for all queued work. Throws the first failure of it (DeviceError, CommError, Aborted) and clears it.
  virtual void synchronize() = 0;

  // Asynchronous access; the host memory must stay valid until synchronize(). Defaults: synchronize, then block.
  virtual void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  virtual void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  /// Bytes in one piece.
  void set_async(Tensor& tensor, const void* data, size_t offset, size_t size) {
    set_2d_async(tensor, data, size, {offset, size, 1, size});
  }
  void get_async(const Tensor& tensor, void* data, size_t offset, size_t size) {
    get_2d_async(tensor, data, size, {offset, size, 1, size});
  }
  /// As get_async(), for what is queued on `reader` later: of several processes that run the same, all those have the
  /// bytes in which `reader` has a device.
  virtual void get_async_for(Backend& reader, const Tensor& tensor, void* data, size_t offset, size_t size) {
    (void)reader;
    get_async(tensor, data, offset, size);
  }
  /// Copies src (on this backend's device) to dst (on `to`'s device) after all work queued here and on `to`; work
  /// queued on either afterwards comes after it. When this stream has failed dst is undefined, and `to` goes on.
  /// Default: one stream accesses the host memory that the other's tensor lies in, or both that of a stage, and events
  /// order them; where there are no events the host waits.
  virtual void copy_async(const Tensor& src, Backend& to, Tensor& dst) = 0;

  /// Between hold() and the release() that goes with it (they nest) queued work need not start: a device gets it in
  /// one piece, and its threads are woken once. Recording an event releases what is held, and so does waiting for it:
  /// of all members before one of them is waited for, as they may need each other in a collective. Use HeldBackend.
  virtual void hold() {}
  virtual void release() {}
  /// The streams behind a backend that stands for several (a meta backend); empty for a simple one. An event that
  /// waits on such a backend waits on each of them.
  virtual std::span<Backend* const> members() const { return {}; }
  /// From now on what the stream does is written down on a row of its own, named as the backend; nullptr: no more.
  /// Waits for queued work, failures of which stay for synchronize(). The tracer must outlive the backend, or be taken
  /// away. A backend that stands for several lets each of them have a row. Default: nothing is written.
  virtual void set_tracer(Tracer* tracer) { (void)tracer; }
};

/// Makes plans and queues runs of them. The first two functions are all that a backend must have.
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// Compiles part of a graph. Tensors without a buffer are allocated (see devices/allocate.h) and owned by
  /// the plan. Freezes the graph. Throws DeviceError for an unsupported op (naming the node) or no memory.
  virtual std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) = 0;
  /// Queues one run of segments [first, last) of a plan made by this backend. No allocation, no host synchronisation. A
  /// run is all segments, in order, one by one or several at a time.
  virtual void compute_async(GraphPlan& plan, int first, int last) = 0;
  /// Hands a plan of this backend over to another graph of the same topology (graph/topology.h), much cheaper than
  /// making it: the new graph's tensors take the places of the old one's, which may be gone. False: the topology is
  /// another, what the range reads from outside has no memory yet (plans of earlier ranges move first), or the backend
  /// cannot do it; nothing has changed then. Waits for queued work.
  virtual bool update_plan(GraphPlan& plan, Graph& graph) {
    (void)plan, (void)graph;
    return false;
  }
  /// Lets graphs be stopped while they run, within one node; synchronize() then throws Aborted, compute() returns
  /// kAborted. Empty: never. Waits for queued work, failures of which stay for synchronize(). False: this backend has
  /// no way to ask.
  virtual bool set_abort_callback(AbortCallback callback) {
    (void)callback;
    return false;
  }
  /// What is queued from here to stop_recording() is written down instead of run. False: this backend cannot.
  virtual bool start_recording() { return false; }
  /// Waits for queued work. nullptr when something in between cannot be recorded (host tasks, access of the host,
  /// events); nothing of it has run then.
  virtual std::unique_ptr<Recording> stop_recording() { return nullptr; }
  /// Queues the recorded work once more, in one piece. Of this backend.
  virtual void replay_async(Recording& recording) { (void)recording; }
};

/// The host's part in a stream: functions in its order, and bytes for communicators that work in host memory.
class HostStream {
 public:
  virtual ~HostStream() = default;
  /// Queues a host function; what it points to must stay valid until synchronize(). No allocation.
  /// False when this backend cannot run host functions in stream order.
  virtual bool enqueue(const HostTask& task) {
    (void)task;
    return false;
  }
  /// The host cannot use addresses of this device's memory: who has some (a communicator) copies the bytes.
  virtual bool has_own_memory() const { return false; }
  /// Queues a copy of bytes at an address of this device's memory; the host memory must stay valid until
  /// synchronize(). Only where has_own_memory().
  virtual void read_bytes_async(const void* from, void* to, size_t size) { (void)from, (void)to, (void)size; }
  virtual void write_bytes_async(void* to, const void* from, size_t size) { (void)to, (void)from, (void)size; }
};

/// What implementations derive from: the three interfaces, plans kept by graph, and the checks that all share.
class Backend : public DeviceStream, public Recorder, public HostStream {
 public:
  void copy_async(const Tensor& src, Backend& to, Tensor& dst) override;
  using Recorder::compute_async;
  using Recorder::create_plan;
  std::unique_ptr<GraphPlan> create_plan(const GraphRange& range) { return create_plan(range, {}); }
  std::unique_ptr<GraphPlan> create_plan(Graph& graph, const PlanOptions& options = {}) {
    return create_plan(whole(graph), options);
  }
  void compute_async(GraphPlan& plan) { compute_async(plan, 0, plan.segments()); }
  /// Through plans kept by graph identity: the first run of a graph makes its plan.
  void compute_async(Graph& graph) { compute_async(plans_.plan(graph)); }
  /// Runs the plan to its end: compute_async + synchronize, errors as a status.
  Status compute(GraphPlan& plan);
  Status compute(Graph& graph);
  PlanCache& plans() { return plans_; }
  /// Expires when the backend is destroyed: for those who keep something about it (plans).
  std::weak_ptr<const void> life() const { return life_; }

 protected:
  // Checks that every implementation shares; all throw InvalidArgument. check_run: of the plan's memory, too.
  void check_owner(const GraphPlan& plan) const;
  void check_run(const GraphPlan& plan, int first, int last) const;
  static void check_options(const GraphRange& range, const PlanOptions& options);

 private:
  /// Host memory of a copy from another stream to this one, until the copy is done.
  struct Stage {
    std::vector<std::byte> bytes;
    std::atomic<bool> in_use{false};
  };

  void copy_through(Stage& stage, const Tensor& src, Backend& to, Tensor& dst);
  Stage& take_stage(size_t bytes);
  /// What is queued on `to` from now on comes after what has been queued here.
  void let_follow(Backend& to);

  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::unique_ptr<Event> queued_;               ///< recorded here; made at first use
  std::vector<std::unique_ptr<Stage>> stages_;  ///< of copies to this backend
  // Implementations clear it in their destructors, after their last work is done: plans use the backend.
  PlanCache plans_{*this, 16};
};

/// Queues `work` of the family of `owner` on a backend, of another family for one: the family is in use until the work
/// is done. It runs after failures too. False when the backend cannot run host functions in stream order.
bool enqueue_for(const Device& owner, Backend& backend, std::function<void()> work);

/// The host waits for what is queued now, held or not. Failures stay for the next synchronize. Devices without events
/// finish what they do before they return.
void finish_queued(Backend& backend);

/// Holds a backend's queue while it lives.
class HeldBackend {
 public:
  explicit HeldBackend(Backend& backend) : backend_(backend) { backend_.hold(); }
  ~HeldBackend() { backend_.release(); }
  HeldBackend(const HeldBackend&) = delete;
  HeldBackend& operator=(const HeldBackend&) = delete;

 private:
  Backend& backend_;
};

}  // namespace shoal
