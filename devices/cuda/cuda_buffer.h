// Memory of CUDA devices, and pinned host memory which they copy to and from quickly. Thread-safe as devices/buffer.h
// says; blocking access runs on a stream of its own and waits for nothing else that the GPU does.
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

/// A buffer's memory may be another's as soon as it has gone: backends that copy from or to it by its address have to
/// be synchronized before, as for all host memory (Backend).
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

/// Host memory that is not pinned.
bool is_pageable(const void* address);

/// Queues the copy of rows between host memory and a tensor of any strides. The rectangle must be inside the tensor.
cudaError_t copy_rows_to_gpu(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows,
                             cudaStream_t stream);
cudaError_t copy_rows_from_gpu(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows,
                               cudaStream_t stream);
/// Queues the copy of a whole contiguous tensor to another one of CUDA devices.
cudaError_t copy_contiguous(const Tensor& src, Tensor& dst, cudaStream_t stream);

/// The device whose memory the tensor lies in; nullptr when that is no CUDA device's.
CudaDevice* cuda_device_of(const Tensor& tensor);

}  // namespace shoal::cuda
