// A mesh of ranks for tests of communicators: one backend for each rank, and runs of one collective on all of them.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "devices/device.h"
#include "tests/collectives/thread_backend.h"
#include "tests/support/plugin.h"

namespace shoal::collectives {

/// Plain threads, or streams of a CPU device or of the example plug-in.
enum class Streams : uint8_t { kThread, kCpu, kPlugin };

class Mesh {
 public:
  explicit Mesh(int ranks, Streams streams = Streams::kThread) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (streams == Streams::kCpu) {
        owned_.push_back(Registry::instance().init("CPU0:threads=1"));
      } else if (streams == Streams::kPlugin) {
        owned_.push_back(test::plugin_device()->init());
      } else {
        owned_.push_back(std::make_unique<ThreadBackend>("T" + std::to_string(rank)));
      }
      backends_.push_back(owned_.back().get());
    }
  }
  int size() const { return static_cast<int>(backends_.size()); }
  const std::vector<Backend*>& backends() const { return backends_; }
  Backend& backend(int rank) { return *backends_[rank]; }
  std::unique_ptr<Communicator> communicator(const Options& options = {}) {
    return make_host_communicator(backends_, options);
  }

  /// Synchronizes all ranks: the message of each rank's error, nullopt where there was none.
  std::vector<std::optional<std::string>> errors() {
    std::vector<std::optional<std::string>> messages(backends_.size());
    for (int rank = 0; rank < size(); ++rank) {
      try {
        backends_[rank]->synchronize();
      } catch (const std::exception& error) {
        messages[rank] = error.what();
      }
    }
    return messages;
  }
  /// Synchronizes all ranks; throws the first error after all have ended.
  void synchronize() {
    std::exception_ptr failure;
    for (Backend* backend : backends_) {
      try {
        backend->synchronize();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
};

}  // namespace shoal::collectives
