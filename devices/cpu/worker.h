// A Worker is the thread that executes the work of a CPU backend. The worker takes work items from a queue in order,
// and leads a team of threads that runs plans. The worker stores the first failure and skips later work. Only host
// tasks and waits still run after a failure. Each host task receives the flag `failed`. Waits still run, so that
// streams that depend on this stream do not continue too early. The worker allocates no memory for an item.
//
// A Timeline counts the items that a worker has finished. A position is a value of this count. Events and cross-backend
// copies wait until a timeline reaches a position. An event stores only the timeline and the position after the last
// item queued before the event. Timelines come from a pool, and their counts never decrease. So a wait for a timeline
// may outlive the backend that uses the timeline.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "devices/backend.h"
#include "devices/cpu/team.h"
#include "devices/cpu/waiting.h"
#include "devices/cpu/work_queue.h"
#include "devices/functions.h"
#include "devices/transfer_work.h"

namespace shoal::cpu {

class CpuPlan;

struct alignas(kCacheLine) Timeline {
  Counter finished;
};

struct ComputeWork {
  CpuPlan* plan;
  int first, last;  ///< segments [first, last)
};
struct WaitWork {
  const Timeline* timeline;
  uint64_t position;
};
struct StopWork {};
using Work = std::variant<StopWork, HostTask, ComputeWork, SetWork, GetWork, CopyWork, WaitWork>;

class Worker {
 public:
  /// `threads` is the number of threads of the team. `slowdown` is the factor by which the team is slowed (slowdown.h).
  Worker(const std::string& name, std::vector<int> cores, int threads, double slowdown);
  /// Waits for the queued work. Discards a failure that synchronize() has not yet thrown.
  ~Worker();

  /// Queues work. Only one thread at a time may call this function. Returns the timeline's position after this work.
  uint64_t push(const Work& work);
  /// Between hold() and the matching release(), the worker receives pushed work only when publish() is called.
  void hold() { ++holds_; }
  void release();
  void publish() { queued_.advance_to(queued_count_); }
  /// The timeline's position after all work queued so far.
  uint64_t position() const { return queued_count_; }
  const Timeline& timeline() const { return *timeline_; }
  /// May be called only while no work is queued.
  void set_abort_callback(AbortCallback callback) { abort_ = std::move(callback); }
  /// Cancels all work queued so far (functions::kCancel). Any thread may call this function.
  void cancel(std::string_view reason);
  /// Sets the trace row for the worker's spans. nullptr stops tracing. May be called only while no work is queued.
  void set_trace(TraceRow* row) { trace_ = row; }
  /// See functions::kWaitForQueued.
  functions::QueueState wait_for_queued(std::chrono::nanoseconds time);
  /// Waits for all queued work. If a failure is stored, throws and clears this failure.
  void synchronize();

 private:
  void serve();                ///< runs items until StopWork
  bool run(const Work& work);  ///< returns false for StopWork
  void wait_for(const WaitWork& work);
  bool run_traced(const Work& work, bool follows);
  void keep_failure();
  /// Whether the running item was cancelled.
  bool is_cancelled() const { return done_ < cancelled_.load(std::memory_order_acquire); }

  Team team_;
  Timeline* timeline_;
  WorkQueue<Work> queue_;
  uint64_t queued_count_;  ///< used only by the thread that calls push()
  int holds_ = 0;          ///< used only by the thread that calls push()
  alignas(kCacheLine) Counter queued_;
  /// The worker writes the failure. The host reads and clears the failure only when all queued work is finished.
  alignas(kCacheLine) std::exception_ptr failure_;
  TraceRow* trace_ = nullptr;
  AbortCallback abort_;
  uint64_t done_;                       ///< number of finished items; used only by the worker
  std::atomic<uint64_t> cancelled_{0};  ///< items up to this position are cancelled
  /// The timeline that the worker waits for; nullptr if the worker does not wait. Timelines are never freed.
  std::atomic<const Timeline*> awaited_{nullptr};
  std::atomic<uint64_t> awaited_position_{0};
  std::mutex mutex_;
  std::string reason_;        ///< the reason passed to cancel(); guarded by mutex_
  int64_t traced_until_ = 0;  ///< end of the latest traced span
  std::thread thread_;
};

}  // namespace shoal::cpu
