// Stores the first failure of a communicator for all its ranks. With several processes, stores the first failure of
// their ProcessGroup. Thread-safe.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "base/error.h"
#include "devices/timeouts.h"
#include "processes/process_group.h"

namespace shoal::collectives::nccl {

class Failure {
 public:
  /// `group`: nullptr for one process.
  explicit Failure(ProcessGroup* group) : group_(group) {
    if (group != nullptr) callback_ = group->on_failure([this](const std::string& message) { hear(message); });
  }
  ~Failure() {
    if (group_ != nullptr) group_->remove_callback(callback_);
  }
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;

  void set(const std::string& message) {
    if (group_ == nullptr) return hear(message);
    if (is_set()) return;
    try {
      group_->fail(message);
    } catch (const CommError& error) {  // group_->fail() throws this failure or an earlier one
      hear(error.what());
    }
  }
  bool is_set() const { return failed_.load(std::memory_order_acquire); }
  void throw_if_set() const {
    if (!is_set()) return;
    const std::lock_guard lock(mutex_);
    throw CommError(message_);
  }

 private:
  void hear(const std::string& message) {
    {
      const std::lock_guard lock(mutex_);
      if (!message_.empty()) return;
      message_ = message;
      failed_.store(true, std::memory_order_release);
    }
    if (message.ends_with(kTimeoutRemedy)) report_.say(message);  // true if the failure is a time-out
  }

  ProcessGroup* const group_;
  mutable std::mutex mutex_;
  std::string message_;
  std::atomic<bool> failed_{false};
  TimeoutReport report_;
  int callback_ = 0;
};

}  // namespace shoal::collectives::nccl
