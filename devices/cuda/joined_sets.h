// Small copies to the GPU that go as one: each costs the driver and the GPU about two microseconds, and a run of a
// graph begins with several, of a few bytes each, to places side by side (graph/memory_plan.h).
//
//   host   t at 0, positions at 128, rows at 256      (4 bytes each)
//   GPU    t at 0, positions at 256, rows at 512      one copy of 3 rows of 4 bytes, 128 and 256 bytes apart
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "devices/backend.h"

namespace shoal::cuda {

/// Bytes of host memory for a tensor.
struct SetWork {
  Tensor* tensor;
  BufferRef memory;  ///< the tensor may go with it
  const void* data;
  size_t host_stride;
  Rows rows;
};

/// Equally long pieces of host memory on their way to a buffer, equally far from each other there and here; not yet
/// handed to the driver.
class JoinedSets {
 public:
  static bool can_begin_with(const SetWork& work);
  explicit JoinedSets(const SetWork& first);
  /// False: it does not go on like that.
  bool add(const SetWork& work);
  cudaError_t copy(cudaStream_t stream) const;
  const BufferRef& memory() const { return memory_; }
  /// While its memory is there.
  const std::string& name() const { return first_->name; }

 private:
  BufferRef memory_;
  const Tensor* first_;
  const std::byte* from_;
  std::byte* to_;
  size_t bytes_, count_ = 1;  ///< bytes of each
  size_t from_pitch_ = 0, to_pitch_ = 0;
};

}  // namespace shoal::cuda
