// A mesh of ranks for tests of communicators. It owns one backend per rank.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/factory.h"
#include "devices/device.h"
#include "tests/collectives/thread_backend.h"
#include "tests/support/plugin.h"

namespace shoal::collectives {

/// The kind of backend of each rank: a plain thread, a CPU backend, or a backend of a plug-in's device. In kMixed,
/// plug-in and CPU devices alternate. kCpuStaged, kPluginStaged and kMixed use the staged communicator. The other
/// values use the communicator of their device family.
enum class Streams : uint8_t { kThread, kCpu, kCpuStaged, kPlugin, kPluginStaged, kMixed };
inline bool needs_plugin(Streams streams) {
  return streams == Streams::kPlugin || streams == Streams::kPluginStaged || streams == Streams::kMixed;
}

class Mesh {
 public:
  explicit Mesh(int ranks, Streams streams = Streams::kThread) : streams_(streams) {
    for (int rank = 0; rank < ranks; ++rank) {
      const bool is_cpu = streams == Streams::kCpu || streams == Streams::kCpuStaged;
      if (is_cpu || (streams == Streams::kMixed && rank % 2 == 1)) {
        owned_.push_back(Registry::instance().init("CPU0:threads=1"));
      } else if (streams != Streams::kThread) {
        const auto devices = test::plugin_device()->reg().devices();
        owned_.push_back(devices[static_cast<size_t>(rank) % devices.size()]->init());
      } else {
        owned_.push_back(std::make_unique<ThreadBackend>("T" + std::to_string(rank)));
      }
      backends_.push_back(owned_.back().get());
    }
  }
  int size() const { return static_cast<int>(backends_.size()); }
  const std::vector<Backend*>& backends() const { return backends_; }
  Backend& backend(int rank) { return *backends_[rank]; }
  CommunicatorFactory factory() const {
    const CommunicatorFactory staged{make_staged_communicator, describe_staged_communicator};
    if (streams_ == Streams::kPlugin) {
      const CommunicatorFactory own = factory_of(test::plugin_device()->reg());
      return own ? own : staged;
    }
    if (streams_ == Streams::kThread || streams_ == Streams::kCpu) {
      return {make_host_communicator, describe_host_communicator};
    }
    return staged;
  }
  std::unique_ptr<Communicator> communicator(const Options& options = {}) { return factory()(backends_, options); }

  /// The address at which a rank accesses the host bytes. A rank with host memory uses `host` itself. Otherwise the
  /// bytes are copied to the rank's device, and synchronize() copies them back.
  std::byte* at(int rank, std::byte* host, size_t size) {
    Backend& backend = *backends_[static_cast<size_t>(rank)];
    if (!backend.has_own_memory()) return host;
    for (const Copy& copy : copies_) {
      if (copy.rank == rank && host >= copy.host && host + size <= copy.host + copy.size) {
        return copy.device->base() + (host - copy.host);
      }
    }
    copies_.push_back({rank, host, size, backend.device().buffer_type().allocate(size)});
    std::byte* device = copies_.back().device->base();
    backend.write_bytes_async(device, host, size);
    return device;
  }

  /// Synchronizes all ranks. Returns one element per rank: the error message, or nullopt if the rank had no error.
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
  /// Copies the bytes of at() back to the host, synchronizes all ranks, then throws the first error.
  void synchronize() {
    for (const Copy& copy : copies_) {
      backends_[static_cast<size_t>(copy.rank)]->read_bytes_async(copy.device->base(), copy.host, copy.size);
    }
    std::exception_ptr failure;
    for (Backend* backend : backends_) {
      try {
        backend->synchronize();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    copies_.clear();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  struct Copy {
    int rank;
    std::byte* host;
    size_t size;
    std::unique_ptr<Buffer> device;
  };

  const Streams streams_;
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
  std::vector<Copy> copies_;
};

}  // namespace shoal::collectives
