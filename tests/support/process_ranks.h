// The ranks of a mesh in several processes, from the view of one process: real backends for its own ranks, remote
// backends for all other ranks. Works with threads that act as processes (thread_processes.h) and with real processes.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "processes/remote_device.h"

namespace shoal::test {

class ProcessRanks {
 public:
  int size() const { return static_cast<int>(backends_.size()); }
  const std::vector<int>& own() const { return own_; }
  bool is_own(int rank) const { return std::find(own_.begin(), own_.end(), rank) != own_.end(); }
  const std::vector<Backend*>& backends() const { return backends_; }
  Backend& backend(int rank) { return *backends_[static_cast<size_t>(rank)]; }

  /// Synchronizes this process's ranks. Returns each rank's error message, or "" if it had no error.
  std::vector<std::string> errors() {
    std::vector<std::string> messages;
    for (const int rank : own_) {
      messages.emplace_back();
      try {
        backend(rank).synchronize();
      } catch (const std::exception& error) {
        messages.back() = error.what();
      }
    }
    return messages;
  }
  /// Synchronizes this process's ranks, then throws CommError for the first failure.
  void synchronize() {
    for (const std::string& message : errors()) require<CommError>(message.empty(), "{}", message);
  }

 protected:
  explicit ProcessRanks(ProcessGroup& group) : group_(group) {}
  ~ProcessRanks() = default;
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  // Adds the next rank: a rank of this process (add_own) or of process spec.process (add_remote).
  void add_own(std::unique_ptr<Backend> backend) {
    own_.push_back(size());
    add(std::move(backend));
  }
  void add_remote(RemoteSpec spec, Device* like) {
    spec.host = group_.host(spec.process);
    remote_.push_back(std::make_unique<RemoteDevice>(std::move(spec), like));
    add(remote_.back()->init());
  }

  ProcessGroup& group_;

 private:
  void add(std::unique_ptr<Backend> backend) {
    backends_.push_back(backend.get());
    owned_.push_back(std::move(backend));
  }

  std::vector<std::unique_ptr<RemoteDevice>> remote_;
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
  std::vector<int> own_;
};

}  // namespace shoal::test
