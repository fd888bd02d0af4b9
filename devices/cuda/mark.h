// Positions in streams. A Mark is an event of the driver, and whether the launcher has recorded it yet; marks are
// pooled and never freed, so that a wait may outlive the backend that it refers to.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shoal::cuda {

/// Is it done? "Not ready" stays as CUDA's last error, where the next launch would be taken for a failed one.
template <class Handle>
cudaError_t ask(cudaError_t (*query)(Handle), Handle handle) {
  const cudaError_t status = query(handle);
  if (status == cudaErrorNotReady) cudaGetLastError();
  return status;
}

class Mark {
 public:
  /// One reference, on a GPU. Throws DeviceError.
  static Mark* take(int gpu);
  void add_reference() { ++references_; }
  /// The last one gives it back to the pool.
  void drop();

  /// Where it fails, what waits goes on; the error is a failure of the stream.
  cudaError_t record(cudaStream_t stream);
  /// For a mark that cannot be recorded (its stream is being captured): what waits goes on.
  void pass();
  /// The stream waits, once the mark has been recorded. An error is a failure of that stream.
  cudaError_t wait(cudaStream_t stream);
  /// The host waits. Errors of the GPU its streams report.
  void synchronize();

 private:
  Mark(int gpu, cudaEvent_t event) : gpu_(gpu), event_(event) {}

  const int gpu_;
  const cudaEvent_t event_;
  std::atomic<int> references_{0};
  std::atomic<int> recorded_{0};  ///< 0 not yet, 1 yes, 2 passed
};

/// Marks after the latest pieces of work of a stream, by which one can tell whether it gets on.
class Progress {
 public:
  ~Progress();
  cudaError_t mark(cudaStream_t stream);
  /// How many marks have been passed so far; more than at the last call means progress.
  uint64_t passed();

 private:
  static constexpr size_t kMarks = 16;
  std::array<cudaEvent_t, kMarks> events_{};
  uint64_t marked_ = 0, passed_ = 0;
};

}  // namespace shoal::cuda
