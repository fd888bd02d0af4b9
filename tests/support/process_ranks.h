// The ranks of a mesh that live in several processes, seen from one of them: backends of its own for its ranks, and
// stand-ins for the others. For threads that act as processes (thread_processes.h) and for real ones.
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

  /// Synchronizes the own ranks: the message of each one's error, "" where there was none.
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
  /// Synchronizes the own ranks; throws CommError for the first failure after all have ended.
  void synchronize() {
    for (const std::string& message : errors()) require<CommError>(message.empty(), "{}", message);
  }

 protected:
  explicit ProcessRanks(ProcessGroup& group) : group_(group) {}
  ~ProcessRanks() = default;
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  // The next rank: of this process, or of spec.process.
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
