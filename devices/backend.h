// Backend: one in-order stream of work on a device. Calls named *_async queue work and return; work queued on
// one backend runs in order, work on different backends runs at the same time unless events order it.
// One thread at a time may queue work on a backend. The first failure of queued work is kept, later work
// is skipped, and the next synchronize() throws the failure and clears it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "devices/buffer.h"
#include "devices/plan_cache.h"
#include "graph/graph.h"

namespace shoal {

class Backend;
class Device;

enum class Status : uint8_t { kSuccess, kFailed, kAllocationFailed, kAborted };

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

/// Compiled form of a graph range on one backend: everything that does not change between runs is resolved.
/// Owns the memory that it had to allocate. Must not outlive its backend or graph.
class GraphPlan {
 public:
  virtual ~GraphPlan() = default;
  virtual Backend& backend() const = 0;
  /// Compute memory allocated by this plan on its device(s), bytes.
  virtual size_t allocated_bytes() const = 0;
};

/// A host function run in stream order. `failed`: earlier work of the stream failed; the task must not do its
/// work then but may tell others (a collective aborts its peers). It may throw, which fails the stream.
struct HostTask {
  void (*run)(void* object, const void* argument, bool failed) = nullptr;
  void* object = nullptr;
  const void* argument = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual Device& device() const = 0;
  /// Identity of the implementation: equal for all backends of one family.
  virtual std::string_view guid() const = 0;

  // Asynchronous access; the host memory must stay valid until synchronize(). Defaults: synchronize, then block.
  virtual void set_async(Tensor& tensor, const void* data, size_t offset, size_t size);
  virtual void get_async(const Tensor& tensor, void* data, size_t offset, size_t size);
  virtual void set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  virtual void get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  /// Copies src (on this backend's device) to dst (on `to`'s device) after all work queued here; work queued
  /// on `to` afterwards sees it. Default: synchronize both, blocking copy.
  virtual void copy_async(const Tensor& src, Backend& to, Tensor& dst);

  /// Between hold() and the release() that goes with it (they nest) queued work need not start: a device gets it in
  /// one piece, and its threads are woken once. Whoever waits for held work, the host or an event, releases it first.
  /// Use HeldBackend.
  virtual void hold() {}
  virtual void release() {}

  /// Waits for all queued work. Throws the first failure of it (DeviceError, CommError) and clears it.
  virtual void synchronize() = 0;

  /// Compiles part of a graph. Tensors without a buffer are allocated (see devices/allocate.h) and owned by
  /// the plan. Freezes the graph. Throws DeviceError for an unsupported op (naming the node) or no memory.
  virtual std::unique_ptr<GraphPlan> create_plan(const GraphRange& range) = 0;
  std::unique_ptr<GraphPlan> create_plan(Graph& graph) { return create_plan(whole(graph)); }
  /// Queues one run of the plan (made by this backend). No allocation, no host synchronisation.
  virtual void compute_async(GraphPlan& plan) = 0;
  /// Runs the plan to its end: compute_async + synchronize, errors as a status.
  Status compute(GraphPlan& plan);
  /// The same through plans kept by graph identity: the first run of a graph makes its plan.
  void compute_async(Graph& graph) { compute_async(plans_.plan(graph)); }
  Status compute(Graph& graph);
  PlanCache& plans() { return plans_; }
  /// The streams behind a backend that stands for several (a meta backend); empty for a simple one. An event that
  /// waits on such a backend waits on each of them.
  virtual std::span<Backend* const> members() const { return {}; }
  /// Queues a host function; what it points to must stay valid until synchronize(). No allocation.
  /// False when this backend cannot run host functions in stream order.
  virtual bool enqueue(const HostTask& task) {
    (void)task;
    return false;
  }

 private:
  template <class Queue>
  Status run(Queue&& queue);

  // Implementations clear it in their destructors, after their last work is done: plans use the backend.
  PlanCache plans_{*this, 16};
};

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
