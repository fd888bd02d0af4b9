// CudaMesh creates devices of the emulated GPUs and the backends of these devices in one process. Tests of the
// plug-in's host code use this class.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/cuda/cuda_communicator.h"
#include "devices/cuda/cuda_backend.h"
#include "devices/cuda/cuda_family.h"
#include "tests/support/environment.h"

namespace shoal::test {

/// A time-out that must not expire. On the emulator, the time-out is longer than any test takes. On a GPU, the time-out
/// is SHOAL_COMM_TIMEOUT.
inline std::chrono::milliseconds long_timeout() {
#ifdef SHOAL_CUDA_EMULATED
  return std::chrono::minutes(5);
#else
  return collectives::default_timeout();
#endif
}

/// A mesh with one rank per device.
class CudaMesh {
 public:
  explicit CudaMesh(int gpus, int devices_per_gpu = 1, const char* params = "")
      : gpus_("SHOAL_EMULATED_GPUS", std::to_string(gpus)),
        parts_("SHOAL_CUDA_DEVICES_PER_GPU", std::to_string(devices_per_gpu)) {
    for (Device* device : family_.devices()) {
      owned_.push_back(device->init(params));
      backends_.push_back(owned_.back().get());
    }
    // The threads of the backends read the environment when these threads start. After this call, tests may change the
    // environment.
    for (Backend* backend : backends_) backend->synchronize();
  }
  /// Ignores pending errors. Tests that expect errors call errors().
  ~CudaMesh() { errors(); }

  int size() const { return static_cast<int>(backends_.size()); }
  cuda::CudaFamily& family() { return family_; }
  std::vector<Device*> devices() const { return {family_.devices().begin(), family_.devices().end()}; }
  const std::vector<Backend*>& backends() const { return backends_; }
  Backend& backend(int rank) const { return *backends_.at(static_cast<size_t>(rank)); }
  int gpu(int rank) const { return static_cast<cuda::CudaBackend&>(backend(rank)).cuda_device().gpu().traits.gpu; }
  std::unique_ptr<collectives::Communicator> communicator(const std::string& implementation,
                                                          std::chrono::milliseconds timeout = long_timeout()) {
    collectives::Options options;
    options.implementation = implementation;
    options.timeout = timeout;
    return collectives::cuda::make_cuda_communicator(backends_, options);
  }

  /// Synchronizes all ranks. For each rank, returns the type and message of the error, or nullopt if the rank had no
  /// error.
  std::vector<std::optional<std::string>> errors() {
    std::vector<std::optional<std::string>> found(backends_.size());
    for (size_t rank = 0; rank < found.size(); ++rank) {
      try {
        backends_[rank]->synchronize();
      } catch (const CommError& error) {
        found[rank] = std::string("CommError: ") + error.what();
      } catch (const DeviceError& error) {
        found[rank] = std::string("DeviceError: ") + error.what();
      }
    }
    return found;
  }

 private:
  Environment gpus_, parts_;
  cuda::CudaFamily family_;
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
};

}  // namespace shoal::test
