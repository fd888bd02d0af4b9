// Backend: one in-order stream of work on a device, as three interfaces: DeviceStream (copies and order), Recorder
// (plans) and HostStream (host functions). A new backend overrides the five pure functions of the first two interfaces;
// the other functions are optional. examples/plugin/simple.cpp is a complete example.
//
// Calls named *_async queue work and return. Work queued on one backend runs in order. Work on different backends runs
// concurrently unless events order it. One thread at a time may queue work on a backend. After the first failure of
// queued work, later work is skipped, and the next synchronize() throws the failure and clears it.
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
/// Runs `work` and converts exceptions of devices and collectives to a status. Other exceptions propagate.
Status status_of(const std::function<void()>& work);

/// A position in a backend's stream: one stream records it, other streams wait for it. Reusable: a wait refers to the
/// latest record made before the wait was queued. Waiting for an event that was never recorded returns at once.
class Event {
 public:
  virtual ~Event() = default;
  virtual Device& device() const = 0;
  virtual void record(Backend& backend) = 0;  ///< queued on `backend`, which must be on this event's device
  virtual void wait(Backend& backend) = 0;    ///< queued on `backend` (of any device); does not block the host
  virtual void synchronize() = 0;             ///< blocks the host
};

/// A thread of the device calls this function before each node while a graph runs. If it returns true, the run stops.
/// It must be quick, must not throw and must not call the backend. A backend with members calls it concurrently from
/// one thread per member.
using AbortCallback = std::function<bool()>;

/// A host function that runs in stream order. `failed` means that earlier work of the stream failed. The task must then
/// skip its work but may notify other streams (a collective aborts its peers). It may throw, which fails the stream.
struct HostTask {
  using Function = void (*)(void* object, const void* argument, bool failed);
  /// Throws InvalidArgument if `run` is nullptr.
  HostTask(Function run, void* object, const void* argument) : run(run), object(object), argument(argument) {
    if (run == nullptr) fail<InvalidArgument>("a host task needs a function, got none");
  }

  Function run;
  void* object;
  const void* argument;
};

/// Queues copies of bytes and orders streams. Only the name, the device and synchronize() are mandatory.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual std::string name() const = 0;
  virtual Device& device() const = 0;
  /// Waits for all queued work. Throws its first failure (DeviceError, CommError, Aborted) and clears it.
  virtual void synchronize() = 0;

  // Asynchronous access; the host memory must stay valid until synchronize(). The default implementations first
  // synchronize, then block.
  virtual void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  virtual void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  /// Bytes [offset, offset + size) of the tensor, contiguous in host memory.
  void set_async(Tensor& tensor, const void* data, size_t offset, size_t size) {
    set_2d_async(tensor, data, size, {offset, size, 1, size});
  }
  void get_async(const Tensor& tensor, void* data, size_t offset, size_t size) {
    get_2d_async(tensor, data, size, {offset, size, 1, size});
  }
  /// Like get_async(), for bytes that later work of `reader` uses. With several processes that run the same program,
  /// the bytes arrive in every process that owns a device of `reader`.
  virtual void get_async_for(Backend& reader, const Tensor& tensor, void* data, size_t offset, size_t size) {
    (void)reader;
    get_async(tensor, data, offset, size);
  }
  /// Copies src (on this backend's device) to dst (on `to`'s device). The copy follows all work queued so far on both
  /// backends and precedes later work on both. If this stream has failed, dst is undefined and `to` continues. By
  /// default, if src or dst is in host memory, one stream accesses that memory directly. Otherwise the copy uses a
  /// staging buffer in host memory. Events order the two streams. If a device has no events, the host waits.
  virtual void copy_async(const Tensor& src, Backend& to, Tensor& dst) = 0;

  /// Pairs of hold() and release() nest. Between hold() and the matching release(), queued work need not start: the
  /// device receives all of it at the release and wakes its threads only once. Recording an event, or waiting for one,
  /// releases held work. In a backend with members, every member releases before any member waits, because members may
  /// need each other in a collective. Use HeldBackend.
  virtual void hold() {}
  virtual void release() {}
  /// The streams of a backend with members (a meta backend); empty for a simple backend. Event::wait() on a backend
  /// with members makes each member wait.
  virtual std::span<Backend* const> members() const { return {}; }
  /// Traces the stream in a row of its own, named after the backend; nullptr stops tracing. Waits for queued work; its
  /// failures remain stored for synchronize(). The tracer must outlive the backend, or must be removed from it first. A
  /// backend with members traces each member in its own row. The default traces nothing.
  virtual void set_tracer(Tracer* tracer) { (void)tracer; }
};

/// Makes plans and queues runs of them. Only the first two functions are mandatory.
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// Compiles part of a graph and freezes the graph. Tensors without a buffer are allocated (devices/allocate.h) and
  /// owned by the plan. Throws DeviceError for an unsupported op (naming the node) or if memory is short.
  virtual std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) = 0;
  /// Queues segments [first, last) of a plan made by this backend. Does not allocate and does not wait for the device.
  /// A run consists of all segments in order, queued one at a time or several at a time.
  virtual void compute_async(GraphPlan& plan, int first, int last) = 0;
  /// Moves a plan of this backend to another graph of the same topology (graph/topology.h), which is much cheaper than
  /// a new plan. The new graph's tensors get the addresses of the old graph's tensors. The old graph may have been
  /// destroyed. Returns false and changes nothing if the topologies differ, if a tensor that the range reads from
  /// outside has no memory yet (plans of earlier ranges move first), or if the backend has no support for it. Waits for
  /// queued work.
  virtual bool update_plan(GraphPlan& plan, Graph& graph) {
    (void)plan, (void)graph;
    return false;
  }
  /// Sets a callback that can stop a graph within one node; synchronize() then throws Aborted and compute() returns
  /// kAborted. An empty callback disables this. Waits for queued work; its failures remain stored for synchronize().
  /// Returns false if this backend cannot call it.
  virtual bool set_abort_callback(AbortCallback callback) {
    (void)callback;
    return false;
  }
  /// Until stop_recording(), queued work is recorded instead of run. Returns false if this backend cannot record.
  virtual bool start_recording() { return false; }
  /// Waits for queued work. Returns nullptr if some of the queued work cannot be recorded (host tasks, host access,
  /// events). In this case none of the work has run.
  virtual std::unique_ptr<Recording> stop_recording() { return nullptr; }
  /// Queues the recorded work of this backend again, in one piece.
  virtual void replay_async(Recording& recording) { (void)recording; }
};

/// Host functions in stream order, and byte copies for communicators that work in host memory.
class HostStream {
 public:
  virtual ~HostStream() = default;
  /// Queues a host function without allocating. Its data must stay valid until synchronize(). Returns false if this
  /// backend cannot run host functions in stream order.
  virtual bool enqueue(const HostTask& task) {
    (void)task;
    return false;
  }
  /// Whether the host cannot access the addresses of this device's memory. A communicator must then copy the bytes.
  virtual bool has_own_memory() const { return false; }
  /// Queues a copy between an address of this device's memory and host memory, which must stay valid until
  /// synchronize(). May be called only if has_own_memory() is true.
  virtual void read_bytes_async(const void* from, void* to, size_t size) { (void)from, (void)to, (void)size; }
  virtual void write_bytes_async(void* to, const void* from, size_t size) { (void)to, (void)from, (void)size; }
};

/// Base class of implementations. It combines the three interfaces, a plan cache and shared checks.
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
  /// Runs the cached plan of this graph object. The first run of a graph makes the plan.
  void compute_async(Graph& graph) { compute_async(plans_.plan(graph)); }
  /// Runs the plan to its end (compute_async and synchronize) and returns errors as a status.
  Status compute(GraphPlan& plan);
  Status compute(Graph& graph);
  PlanCache& plans() { return plans_; }
  /// Expires when the backend is destroyed. Plans and other objects that refer to the backend use it.
  std::weak_ptr<const void> life() const { return life_; }

 protected:
  // Checks shared by all implementations; they throw InvalidArgument. check_run also checks the plan's memory.
  void check_owner(const GraphPlan& plan) const;
  void check_run(const GraphPlan& plan, int first, int last) const;
  static void check_options(const GraphRange& range, const PlanOptions& options);

 private:
  /// Staging buffer in host memory for a copy from another stream to this one.
  struct Stage {
    std::vector<std::byte> bytes;
    std::atomic<bool> in_use{false};
  };

  void copy_through(Stage& stage, const Tensor& src, Backend& to, Tensor& dst);
  Stage& take_stage(size_t bytes);
  /// Makes later work of `to` wait for all work queued on this backend so far.
  void order_before(Backend& to);

  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::unique_ptr<Event> queued_;               ///< recorded on this backend; created at first use
  std::vector<std::unique_ptr<Stage>> stages_;  ///< for copies to this backend
  // Plans use the backend. So the destructors of implementations clear this cache after their last work is done.
  PlanCache plans_{*this, 16};
};

/// Queues `work`, whose code belongs to the family of `owner`, on a backend that may be of another family. The family
/// of `owner` counts as in use until the work is done. The work runs even if earlier work failed. Returns false if the
/// backend cannot run host functions in stream order.
bool enqueue_for(const Device& owner, Backend& backend, std::function<void()> work);

/// Blocks until all work queued so far, including held work, is done. Failures remain stored for the next
/// synchronize(). Does not wait for devices without events, because their calls return only after the work is done.
void finish_queued(Backend& backend);

/// Holds a backend's queue during its lifetime.
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
