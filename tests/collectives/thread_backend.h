// ThreadBackend: a stream of host functions that has its own thread. ThreadBackend has no memory and no ops. The device
// family of ThreadBackend offers no functions. ThreadBackend fulfils the contract of Backend::enqueue. Tasks run in
// order. The first failure is stored. A flag tells later tasks that an earlier task failed. synchronize() throws the
// failure and clears it.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "devices/backend.h"

namespace shoal::collectives {

class ThreadBackend : public Backend {
 public:
  explicit ThreadBackend(std::string name) : name_(std::move(name)), thread_([this] { work(); }) {}
  ~ThreadBackend() override {
    {
      std::lock_guard lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  std::string name() const override { return name_; }
  Device& device() const override { return Registry::instance().device("NULL0"); }
  std::unique_ptr<GraphPlan> create_plan(const GraphRange&, const PlanOptions&) override {
    fail<DeviceError>("{} has no ops", name_);
  }
  void compute_async(GraphPlan&, int, int) override { fail<DeviceError>("{} has no ops", name_); }

  bool enqueue(const HostTask& task) override {
    std::lock_guard lock(mutex_);
    tasks_.push_back(task);
    changed_.notify_all();
    return true;
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty(); });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !tasks_.empty() || ends_; });
      if (tasks_.empty()) return;
      const HostTask task = tasks_.front();
      const bool failed = failure_ != nullptr;
      lock.unlock();
      std::exception_ptr failure;
      try {
        task.run(task.object, task.argument, failed);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (!failure_) failure_ = failure;
      tasks_.pop_front();  // removed after the run of the task, because synchronize() waits for an empty queue
      changed_.notify_all();
    }
  }

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HostTask> tasks_;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace shoal::collectives
