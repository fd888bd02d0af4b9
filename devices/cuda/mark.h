// Marks: positions in streams for which other streams or the host can wait. A Mark consists of a driver event and a
// flag that states whether the launcher has recorded the event. Marks are pooled and never freed, so a wait for a mark
// may outlive the backend that recorded the mark.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shoal::cuda {

/// Queries an event or stream. Clears "not ready" from CUDA's last error, because otherwise the next launch would seem
/// to have failed.
template <class Handle>
cudaError_t ask(cudaError_t (*query)(Handle), Handle handle) {
  const cudaError_t status = query(handle);
  if (status == cudaErrorNotReady) cudaGetLastError();
  return status;
}

class Mark {
 public:
  /// Returns a mark of a GPU. The caller owns the only reference to the mark. Throws DeviceError.
  static Mark* take(int gpu);
  void add_reference() { ++references_; }
  /// Drops a reference. The last drop returns the mark to the pool.
  void drop();

  /// Records the mark in a stream. If the recording fails, waiters continue, and the error counts as a failure of this
  /// stream.
  cudaError_t record(cudaStream_t stream);
  /// Releases waiters without recording, because the mark's stream is being captured.
  void pass();
  /// Makes a stream wait for the mark. Blocks this thread until the mark has been recorded. An error counts as a
  /// failure of the stream that waits.
  cudaError_t wait(cudaStream_t stream);
  /// Blocks this thread until the mark is reached. Ignores errors of the GPU, because the GPU's streams report them.
  void synchronize();

 private:
  Mark(int gpu, cudaEvent_t event) : gpu_(gpu), event_(event) {}

  const int gpu_;
  const cudaEvent_t event_;
  std::atomic<int> references_{0};
  std::atomic<int> recorded_{0};  ///< 0: waiters block; 1: recorded; 2: released without an event
};

/// Records events after the latest work of a stream, to detect whether the stream makes progress.
class Progress {
 public:
  ~Progress();
  cudaError_t mark(cudaStream_t stream);
  /// Returns the number of events reached so far. If the number is larger than in the previous call, the stream has
  /// made progress.
  uint64_t passed();

 private:
  static constexpr size_t kMarks = 16;
  std::array<cudaEvent_t, kMarks> events_{};
  uint64_t marked_ = 0, passed_ = 0;
};

}  // namespace shoal::cuda
