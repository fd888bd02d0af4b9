#include "devices/cpu/worker.h"

#include <pthread.h>

#include <deque>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "devices/cpu/cpu_plan.h"

namespace shoal::cpu {
namespace {

/// Timelines are reused and never freed; see worker.h.
class TimelinePool {
 public:
  static TimelinePool& instance() {
    static TimelinePool& pool = *new TimelinePool;
    return pool;
  }
  Timeline* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return &all_.emplace_back();
    Timeline* timeline = free_.back();
    free_.pop_back();
    return timeline;
  }
  void give_back(Timeline* timeline) {
    const std::lock_guard lock(mutex_);
    free_.push_back(timeline);
  }

 private:
  std::mutex mutex_;
  std::deque<Timeline> all_;
  std::vector<Timeline*> free_;
};

// run_item() has one overload for each type of work.
void run_item(const HostTask& task, Team&) {
  task.run(task.object, task.argument, false);
}
void run_item(const ComputeWork& work, Team& team) {
  work.plan->run(team, work.first, work.last);
}
void run_item(const SetWork& work, Team&) {
  const HeldBuffer held(work.memory);
  check_held(held, "set");
  check_access("set", *work.tensor, work.host_stride, work.rows);
  work.tensor->buffer->set_2d(*work.tensor, work.data, work.host_stride, work.rows);
}
void run_item(const GetWork& work, Team&) {
  const HeldBuffer held(work.memory);
  check_held(held, "get");
  check_access("get", *work.tensor, work.host_stride, work.rows);
  work.tensor->buffer->get_2d(*work.tensor, work.data, work.host_stride, work.rows);
}
void run_item(const CopyWork& work, Team&) {
  const HeldBuffer from(work.from), to(work.to);
  check_held(from, "copy");
  check_held(to, "copy");
  tensor_copy(*work.src, *work.dst);
}

// describe() names an item of work in traces.
void describe(const ComputeWork& work, TraceSpan& span) {
  work.plan->describe(work.first, work.last, span);
}
void describe(const WaitWork& work, TraceSpan& span) {
  const bool waits = work.timeline->finished.value() < work.position;
  if (waits) span.describe(TraceKind::kWait, {"wait for another stream"});
}

}  // namespace

Worker::Worker(const std::string& name, std::vector<int> cores, int threads, double slowdown)
    : team_(threads, std::move(cores), slowdown), timeline_(TimelinePool::instance().take()) {
  queued_count_ = done_ = timeline_->finished.value();
  team_.set_abort_callback([this] { return is_cancelled() || (abort_ && abort_()); });
  queued_.advance_to(queued_count_);
  try {
    thread_ = std::thread([this] { team_.lead([this] { serve(); }); });
  } catch (const std::system_error& error) {
    TimelinePool::instance().give_back(timeline_);
    fail<DeviceError>("[{}] cannot start a thread ({}): raise the limit of processes, or use fewer devices", name,
                      error.what());
  }
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

Worker::~Worker() {
  push(StopWork{});
  publish();
  thread_.join();
  TimelinePool::instance().give_back(timeline_);
}

uint64_t Worker::push(const Work& work) {
  queue_.push(work);
  ++queued_count_;
  if (holds_ == 0) publish();
  return queued_count_;
}

void Worker::release() {
  if (--holds_ == 0) publish();
}

functions::QueueState Worker::wait_for_queued(std::chrono::nanoseconds time) {
  using functions::Activity;
  publish();
  const bool all = timeline_->finished.wait_for(queued_count_, Waiter::kHost, time);
  const uint64_t ended = timeline_->finished.value();
  if (all) return {Activity::kNone, ended};
  const Timeline* awaited = awaited_.load(std::memory_order_acquire);
  const bool waits = awaited != nullptr && awaited->finished.value() < awaited_position_;
  return {waits ? Activity::kWaits : Activity::kWorks, ended};
}

void Worker::synchronize() {
  publish();
  timeline_->finished.wait_for(queued_count_, Waiter::kHost);
  if (failure_ == nullptr) return;
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Worker::cancel(std::string_view reason) {
  {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
  }
  cancelled_.store(queued_.value(), std::memory_order_release);
}

void Worker::serve() {
  for (;;) {
    const bool follows = queued_.value() > done_;
    queued_.wait_for(done_ + 1, Waiter::kWorker);
    const bool more = trace_ == nullptr ? run(queue_.pop()) : run_traced(queue_.pop(), follows);
    timeline_->finished.advance_to(++done_);
    if (!more) return;
  }
}

// If an item follows the previous item without a pause, the item's span begins at the end of the previous item's span.
// So a gap between spans is real idle time. A host task describes itself (current_span()).
bool Worker::run_traced(const Work& work, bool follows) {
  TraceSpan span;
  span.begin_ns = follows && traced_until_ > 0 ? traced_until_ : trace_clock();
  if (failure_ == nullptr) {
    std::visit(
        [&span](const auto& item) {
          if constexpr (requires { describe(item, span); }) describe(item, span);
        },
        work);
  }
  const CurrentSpan current(span);
  const bool more = run(work);
  span.end_ns = traced_until_ = trace_clock();
  if (span.is_shown()) trace_->add(span);
  return more;
}

bool Worker::run(const Work& work) {
  if (std::holds_alternative<StopWork>(work)) return false;
  if (const auto* wait = std::get_if<WaitWork>(&work)) {
    wait_for(*wait);
    return true;
  }
  try {
    if (failure_ == nullptr) {
      std::visit(
          [this](const auto& item) {
            if constexpr (requires { run_item(item, team_); }) run_item(item, team_);
          },
          work);
    } else if (const auto* task = std::get_if<HostTask>(&work)) {
      task->run(task->object, task->argument, true);
    }
  } catch (...) {
    keep_failure();
  }
  return true;
}

void Worker::wait_for(const WaitWork& work) {
  const Counter& finished = work.timeline->finished;
  if (finished.value() >= work.position) return;
  awaited_position_ = work.position;
  awaited_.store(work.timeline, std::memory_order_release);
  finished.wait_for(work.position, Waiter::kWorker);
  awaited_.store(nullptr, std::memory_order_release);
}

/// Stores the current exception. Does nothing if an earlier failure is stored.
void Worker::keep_failure() {
  if (failure_ != nullptr) return;
  failure_ = std::current_exception();
  if (!is_cancelled()) return;
  try {
    throw;
  } catch (const Aborted&) {
    const std::lock_guard lock(mutex_);
    failure_ = std::make_exception_ptr(CommError(reason_));
  } catch (...) {
  }
}

}  // namespace shoal::cpu
