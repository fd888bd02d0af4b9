// The first failure of a communicator, for all its ranks: in one process, or in all processes of a group, which then
// have the same message, that of the group. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "devices/timeouts.h"
#include "processes/process_group.h"

namespace shoal::collectives::nccl {

class Failure {
 public:
  /// In one process.
  Failure() = default;
  /// In all of the group. `speaks`: seen by all processes of the node, so that one of those that find something at the
  /// same time tells it.
  Failure(ProcessGroup& group, std::atomic<uint32_t>& speaks);
  ~Failure();
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;

  void set(const std::string& message);
  /// The same of a rank that did not come in time (devices/timeouts.h).
  void set_late(const std::string& message);
  /// What another process may know better than NCCL does: waits a moment for it.
  void let_others_tell() const;
  bool is_set() const { return failed_.load(std::memory_order_acquire); }
  void throw_if_set() const;

 private:
  /// What the group calls, as long as this lives.
  struct Hearing {
    std::mutex mutex;
    Failure* failure;
  };

  /// False: there has been another one.
  bool note(const std::string& message);
  void hear(const std::string& message);
  void tell_all(const std::string& message);

  ProcessGroup* const group_ = nullptr;
  std::atomic<uint32_t>* const speaks_ = nullptr;
  mutable std::mutex mutex_;
  std::string message_;
  std::atomic<bool> failed_{false};
  TimeoutReport report_;
  std::shared_ptr<Hearing> hearing_;
  int callback_ = 0;
};

}  // namespace shoal::collectives::nccl
