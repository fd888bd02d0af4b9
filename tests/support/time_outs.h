// TimeOuts collects the time-out messages of communicators and meta devices during its lifetime.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "devices/timeouts.h"

namespace shoal::test {

class TimeOuts {
 public:
  /// The constructor's callback `then` is called after each collected message.
  explicit TimeOuts(std::function<void()> then = [] {}) : then_(std::move(then)) {
    set_timeout_callback([this](std::string_view message) {
      {
        const std::lock_guard lock(mutex_);
        messages_.emplace_back(message);
      }
      then_();
    });
  }
  ~TimeOuts() { set_timeout_callback(nullptr); }
  TimeOuts(const TimeOuts&) = delete;
  TimeOuts& operator=(const TimeOuts&) = delete;

  std::vector<std::string> messages() const {
    const std::lock_guard lock(mutex_);
    return messages_;
  }

 private:
  const std::function<void()> then_;
  mutable std::mutex mutex_;
  std::vector<std::string> messages_;
};

}  // namespace shoal::test
