// A Backend is one in-order stream of work on a device. It combines three interfaces: DeviceStream (copies, order of
// streams), Recorder (plans) and HostStream (host functions). A new backend must override only the pure functions
// name(), device(), synchronize(), create_plan() and compute_async(). examples/plugin/simple.cpp is a complete example.
//
// Calls named *_async queue work and return. Work queued on one backend runs in order. Work on different backends runs
// concurrently unless events order it. One thread at a time may queue work on a backend. After the first failure of
// queued work, the backend skips later work. The next synchronize() throws this failure and clears it.
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

/// A position in a backend's stream: one stream records the event, and other streams wait for it. An event can be
/// recorded again. A wait refers to the latest recording that was queued before the wait. A wait for an event that was
/// never recorded returns at once.
class Event {
 public:
  virtual ~Event() = default;
  virtual Device& device() const = 0;
  virtual void record(Backend& backend) = 0;  ///< queues a recording of the event; `backend` must be on device()
  virtual void wait(Backend& backend) = 0;    ///< queues a wait on `backend` (of any device); does not block the host
  virtual void synchronize() = 0;             ///< blocks the host until the event occurs
};

/// A thread of the device calls this function before each node of a running graph. If the function returns true, the
/// run stops. The function must be quick, must not throw and must not call the backend. A backend with members calls
/// the function concurrently from one thread per member.
using AbortCallback = std::function<bool()>;

/// A host function that runs in stream order. `failed` is true if earlier work of the stream failed. In this case, the
/// task must skip its work but may notify other streams. For example, a collective aborts its peers. If the task
/// throws, the stream fails.
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

/// Queues copies of bytes and orders streams. A backend must override only name(), device() and synchronize().
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual std::string name() const = 0;
  virtual Device& device() const = 0;
  /// Waits for all queued work. Throws the first failure of this work (DeviceError, CommError, Aborted) and clears it.
  virtual void synchronize() = 0;

  // Asynchronous access to a tensor. The host memory must stay valid until synchronize(). The default implementations
  // call synchronize() and then copy synchronously.
  virtual void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  virtual void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  /// Accesses bytes [offset, offset + size) of the tensor. These bytes are contiguous in host memory.
  void set_async(Tensor& tensor, const void* data, size_t offset, size_t size) {
    set_2d_async(tensor, data, size, {offset, size, 1, size});
  }
  void get_async(const Tensor& tensor, void* data, size_t offset, size_t size) {
    get_2d_async(tensor, data, size, {offset, size, 1, size});
  }
  /// Like get_async(). Later work of `reader` uses the bytes. If several processes run the same program, the bytes
  /// arrive in every process that owns a device of `reader`.
  virtual void get_async_for(Backend& reader, const Tensor& tensor, void* data, size_t offset, size_t size) {
    (void)reader;
    get_async(tensor, data, offset, size);
  }
  /// Copies src (on this backend's device) to dst (on `to`'s device). The copy follows all work queued so far on both
  /// backends and precedes later work on both backends. If this stream has failed, the contents of dst are undefined
  /// and `to` continues. By default, if dst is contiguous and in host memory, this stream writes directly to dst. If
  /// only src is contiguous and in host memory, the stream of `to` reads directly from src. Otherwise, the copy uses a
  /// staging buffer in host memory. Events order the two streams. If a device has no events, the host waits.
  virtual void copy_async(const Tensor& src, Backend& to, Tensor& dst) = 0;

  /// Pairs of hold() and release() may be nested. Between hold() and the matching release(), the device need not start
  /// queued work. At the release, the device receives all held work at once and wakes its threads only once. Recording
  /// an event, or waiting for an event, releases held work. In a backend with members, every member releases its work
  /// before any member waits, because members may need each other in a collective. Callers use HeldBackend.
  virtual void hold() {}
  virtual void release() {}
  /// The streams of a backend with members (a meta backend); empty for a simple backend. For a backend with members,
  /// Event::wait() makes each member wait.
  virtual std::span<Backend* const> members() const { return {}; }
  /// Writes the work of this stream to one row of the trace. The row has the backend's name. With nullptr, tracing
  /// stops. Waits for queued work; failures of this work remain stored for synchronize(). The tracer must exist until
  /// the caller stops tracing or destroys the backend. A backend with members writes one row per member. The default
  /// traces nothing.
  virtual void set_tracer(Tracer* tracer) { (void)tracer; }
};

/// Makes plans and queues runs of them. A backend must override only create_plan() and compute_async().
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// Compiles part of a graph and freezes the graph. The plan allocates and owns the memory of tensors that have no
  /// buffer (devices/allocate.h). Throws DeviceError if memory is insufficient. If an op is not supported, throws
  /// DeviceError that names the node.
  virtual std::unique_ptr<GraphPlan> create_plan(const GraphRange& range, const PlanOptions& options) = 0;
  /// Queues segments [first, last) of a plan made by this backend. Does not allocate and does not wait for the device.
  /// A run consists of all segments in order. A caller may queue one or several segments at a time.
  virtual void compute_async(GraphPlan& plan, int first, int last) = 0;
  /// Moves a plan of this backend to another graph of the same topology (graph/topology.h). A move is much cheaper than
  /// a new plan. The new graph's tensors get the addresses of the old graph's tensors. The old graph may already be
  /// destroyed. Waits for queued work. Returns false and changes nothing in three cases:
  /// - The topologies differ.
  /// - A source from outside the range has no memory yet. To avoid this case, move plans of earlier ranges first.
  /// - The backend cannot move plans.
  virtual bool update_plan(GraphPlan& plan, Graph& graph) {
    (void)plan, (void)graph;
    return false;
  }
  /// Sets a callback that can stop a running graph before its next node. After such a stop, synchronize() throws
  /// Aborted and compute() returns kAborted. An empty callback removes the previous callback. Waits for queued work;
  /// failures of this work remain stored for synchronize(). Returns false if this backend cannot call callbacks.
  virtual bool set_abort_callback(AbortCallback callback) {
    (void)callback;
    return false;
  }
  /// Until stop_recording(), queued work is recorded and does not run. Returns false if this backend cannot record.
  virtual bool start_recording() { return false; }
  /// Waits for queued work. Returns nullptr if some of the queued work cannot be recorded (host tasks, host access,
  /// events). In this case, none of the work has run.
  virtual std::unique_ptr<Recording> stop_recording() { return nullptr; }
  /// Queues all work of the recording at once. The recording must belong to this backend.
  virtual void replay_async(Recording& recording) { (void)recording; }
};

/// Runs host functions in stream order, and copies bytes for communicators that work in host memory.
class HostStream {
 public:
  virtual ~HostStream() = default;
  /// Queues a host function without allocating. The object and the argument of the task must stay valid until
  /// synchronize(). Returns false if this backend cannot run host functions in stream order.
  virtual bool enqueue(const HostTask& task) {
    (void)task;
    return false;
  }
  /// Whether the device has memory that the host cannot access. If true, a communicator must copy bytes to and from
  /// host memory.
  virtual bool has_own_memory() const { return false; }
  /// Queues a copy between an address of this device's memory and host memory. The host memory must stay valid until
  /// synchronize(). Callers may call this function only if has_own_memory() is true.
  virtual void read_bytes_async(const void* from, void* to, size_t size) { (void)from, (void)to, (void)size; }
  virtual void write_bytes_async(void* to, const void* from, size_t size) { (void)to, (void)from, (void)size; }
};

/// Base class of all backends. It combines the three interfaces, a plan cache and shared checks.
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
  /// Runs the cached plan of `graph`. The first run of a graph makes the plan.
  void compute_async(Graph& graph) { compute_async(plans_.plan(graph)); }
  /// Runs the plan to its end (compute_async and synchronize) and returns errors as a status.
  Status compute(GraphPlan& plan);
  Status compute(Graph& graph);
  PlanCache& plans() { return plans_; }
  /// This pointer expires when the backend is destroyed. Plans and other objects that refer to the backend check the
  /// pointer.
  std::weak_ptr<const void> life() const { return life_; }

 protected:
  // All implementations share these checks, which throw InvalidArgument. check_run also checks the plan's memory.
  void check_owner(const GraphPlan& plan) const;
  void check_run(const GraphPlan& plan, int first, int last) const;
  static void check_options(const GraphRange& range, const PlanOptions& options);

 private:
  /// Staging buffer in host memory for a copy from another stream to this stream.
  struct Stage {
    std::vector<std::byte> bytes;
    std::atomic<bool> in_use{false};
  };

  void copy_through(Stage& stage, const Tensor& src, Backend& to, Tensor& dst);
  Stage& take_stage(size_t bytes);
  /// Makes later work of `to` wait for all work queued on this backend so far.
  void order_before(Backend& to);

  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::unique_ptr<Event> queued_;               ///< event that is recorded on this backend; created at first use
  std::vector<std::unique_ptr<Stage>> stages_;  ///< staging buffers for copies to this backend
  // Plans use the backend. So the destructor of each implementation clears this cache after all queued work is done.
  PlanCache plans_{*this, 16};
};

/// Queues `work` on a backend. The code of `work` belongs to the family of `owner`, which may differ from the backend's
/// family. The family of `owner` counts as in use until the work is done. The work runs even if earlier work failed.
/// Returns false if the backend cannot run host functions in stream order.
bool enqueue_for(const Device& owner, Backend& backend, std::function<void()> work);

/// Blocks until all work queued so far, including held work, is done. Failures remain stored for the next
/// synchronize(). Does not wait for a device without events, because the calls of such a device return only after their
/// work is done.
void finish_queued(Backend& backend);

/// Holds the queue of a backend (DeviceStream::hold) during the lifetime of this object.
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
