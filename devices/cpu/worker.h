// Worker: the thread behind a CPU backend. It takes work items from a queue in order and, for plans, leads a
// team. The first failure is kept; later work is skipped, except that host tasks are told and waits still
// wait (others may rely on the order). Nothing here allocates per item.
//
// A Timeline counts the items a worker has finished, and positions on it are what events and cross-backend
// copies wait for: the record of an event is just (timeline, number of items queued so far). Timelines are
// pooled and their counts never fall, so that a wait may outlive the backend it refers to.
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
  int first, last;  ///< segments
};
struct WaitWork {
  const Timeline* timeline;
  uint64_t position;
};
struct StopWork {};
using Work = std::variant<StopWork, HostTask, ComputeWork, SetWork, GetWork, CopyWork, WaitWork>;

class Worker {
 public:
  /// `threads` is the size of the team that plans will use, `slowdown` how many times slower it is to be (slowdown.h).
  Worker(const std::string& name, std::vector<int> cores, int threads, double slowdown);
  /// Finishes the queued work first. Failures not asked for are lost.
  ~Worker();

  /// Queues work; one thread at a time. Returns the position at which it is finished.
  uint64_t push(const Work& work);
  /// Between hold() and release() the worker does not see what is pushed, unless publish() shows it.
  void hold() { ++holds_; }
  void release();
  void publish() { queued_.advance_to(queued_count_); }
  /// Position of everything queued so far.
  uint64_t position() const { return queued_count_; }
  const Timeline& timeline() const { return *timeline_; }
  /// While nothing is queued.
  void set_abort_callback(AbortCallback callback) { abort_ = std::move(callback); }
  /// What is queued so far is not wanted any more: see functions::kGiveUp. Any thread.
  void give_up(std::string_view reason);
  /// The row that what it does is written to; nullptr: none. While nothing is queued.
  void set_trace(TraceRow* row) { trace_ = row; }
  /// See functions::kWaitForQueued.
  functions::QueueState wait_for_queued(std::chrono::nanoseconds time);
  /// Waits for everything queued; throws the first failure and clears it.
  void synchronize();

 private:
  void serve();                ///< takes work until told to stop
  bool run(const Work& work);  ///< false: stop
  void wait_for(const WaitWork& work);
  bool run_traced(const Work& work, bool follows);
  void keep_failure();
  /// Is the item that runs not wanted any more?
  bool is_given_up() const { return done_ < given_up_.load(std::memory_order_acquire); }

  Team team_;
  Timeline* timeline_;
  WorkQueue<Work> queue_;
  uint64_t queued_count_;  ///< pushing thread only
  int holds_ = 0;          ///< pushing thread only
  alignas(kCacheLine) Counter queued_;
  /// Written by the worker; the host reads and clears it only when all queued work is finished.
  alignas(kCacheLine) std::exception_ptr failure_;
  TraceRow* trace_ = nullptr;
  AbortCallback abort_;
  uint64_t done_;                      ///< items finished; worker
  std::atomic<uint64_t> given_up_{0};  ///< items up to this position are not wanted any more
  /// What the worker waits for; nullptr: nothing. Timelines are never freed.
  std::atomic<const Timeline*> awaited_{nullptr};
  std::atomic<uint64_t> awaited_position_{0};
  std::mutex mutex_;
  std::string reason_;        ///< guarded by mutex_
  int64_t traced_until_ = 0;  ///< the end of the latest span
  std::thread thread_;
};

}  // namespace shoal::cpu
