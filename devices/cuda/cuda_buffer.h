// Memory of CUDA devices, and pinned host memory for fast copies. Thread-safe to the extent stated in devices/buffer.h.
// Blocking access uses a separate stream and does not wait for other work of the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "devices/buffer.h"

namespace shoal::cuda {

class CudaDevice;

class CudaBufferType final : public BufferType {
 public:
  explicit CudaBufferType(CudaDevice& device) : device_(device) {}
  std::string name() const override;
  Device& device() const override;
  std::unique_ptr<Buffer> allocate(size_t size) override;
  size_t alignment() const override { return 256; }
  CudaDevice& cuda_device() const { return device_; }

 private:
  CudaDevice& device_;
};

/// Freed pinned memory may be reused immediately. So every backend that copies from or to a buffer must be synchronized
/// before the buffer is freed. The same rule applies to all host memory (devices/backend.h).
class PinnedBufferType final : public BufferType {
 public:
  explicit PinnedBufferType(CudaDevice& device) : device_(device) {}
  std::string name() const override;
  Device& device() const override;
  std::unique_ptr<Buffer> allocate(size_t size) override;
  size_t alignment() const override { return 256; }
  bool is_host() const override { return true; }

 private:
  CudaDevice& device_;
};

/// Whether the address is in pageable (not pinned) host memory.
bool is_pageable(const void* address);

/// Queues a copy of rows between host memory and a tensor with any strides. The rows must be inside the tensor.
cudaError_t copy_rows_to_gpu(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows,
                             cudaStream_t stream);
cudaError_t copy_rows_from_gpu(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows,
                               cudaStream_t stream);
/// Queues a copy of a whole contiguous tensor to another tensor. Both tensors are on CUDA devices.
cudaError_t copy_contiguous(const Tensor& src, Tensor& dst, cudaStream_t stream);

/// Returns the CUDA device whose memory contains the tensor, or nullptr.
CudaDevice* cuda_device_of(const Tensor& tensor);

}  // namespace shoal::cuda
