// The ranks of a mesh, as seen by one of several processes. The ranks of this process have real backends, and all other
// ranks have remote backends. A "process" can be a real process or a thread (thread_processes.h).
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

  /// Synchronizes the ranks of this process. Returns one error message per rank, "" for a rank without an error.
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
  /// Synchronizes the ranks of this process, then throws the first error as CommError.
  void synchronize() {
    for (const std::string& message : errors()) require<CommError>(message.empty(), "{}", message);
  }

 protected:
  explicit ProcessRanks(ProcessGroup& group) : group_(group) {}
  ~ProcessRanks() = default;
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  // These functions add the next rank. add_own() adds a rank of this process. add_remote() adds a rank of process
  // spec.process.
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
