#include "devices/cuda/cuda_buffer.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_family.h"
#include "devices/cuda/granule.h"
#include "devices/host_buffer.h"
#include "devices/strided.h"

namespace shoal::cuda {
namespace {

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(CudaBufferType& type, std::byte* data, size_t size)
      : Buffer(type, size), device_(type.cuda_device()), data_(data) {}
  ~CudaBuffer() override {
    close();
    const CurrentGpu current(device_.gpu().traits.gpu);
    cudaFreeAsync(data_, device_.gpu().transfers());
    device_.give_back(size());
  }
  std::byte* base() const override { return data_; }
  void clear(uint8_t value) override {
    run("clear memory", [&](cudaStream_t stream) { return cudaMemsetAsync(data_, value, size(), stream); });
  }
  bool copy_tensor(const Tensor& src, Tensor& dst) override {
    if (cuda_device_of(src) == nullptr) return false;
    run("copy a tensor", [&](cudaStream_t stream) { return copy_contiguous(src, dst, stream); });
    return true;
  }

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override {
    do_set_2d(tensor, data, size, {offset, size, 1, size});
  }
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override {
    do_get_2d(tensor, data, size, {offset, size, 1, size});
  }
  void do_set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override {
    run("write a tensor",
        [&](cudaStream_t stream) { return copy_rows_to_gpu(tensor, data, host_stride, rows, stream); });
  }
  void do_get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) override {
    run("read a tensor",
        [&](cudaStream_t stream) { return copy_rows_from_gpu(tensor, data, host_stride, rows, stream); });
  }
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override {
    run("fill a tensor", [&](cudaStream_t stream) {
      cudaError_t status = cudaSuccess;
      for_each_piece(tensor, offset, size, [&](size_t at, size_t, size_t length) {
        if (status == cudaSuccess) status = cudaMemsetAsync(tensor.data + at, value, length, stream);
      });
      return status;
    });
  }

 private:
  /// Queues work on the transfer stream and waits until the work is done.
  template <class F>
  void run(std::string_view what, F&& queue) {
    const CurrentGpu current(device_.gpu().traits.gpu);
    check(queue(device_.gpu().transfers()), device_.name(), what);
    check(cudaStreamSynchronize(device_.gpu().transfers()), device_.name(), what);
  }

  CudaDevice& device_;
  std::byte* data_;
};

class PinnedBuffer final : public HostBuffer {
 public:
  using HostBuffer::HostBuffer;
  ~PinnedBuffer() override {
    close();
    cudaFreeHost(base());
  }
};

/// Calls copy(tensor address, host offset, length) for each contiguous piece of each row, until a call fails.
template <class Copy>
cudaError_t for_each_row_piece(const Tensor& tensor, size_t host_stride, const Rows& rows, Copy&& copy) {
  cudaError_t status = cudaSuccess;
  for (size_t row = 0; row < rows.rows; ++row) {
    for_each_piece(tensor, rows.offset + row * rows.stride, rows.row_bytes, [&](size_t at, size_t done, size_t length) {
      if (status == cudaSuccess) status = copy(tensor.data + at, row * host_stride + done, length);
    });
  }
  return status;
}

}  // namespace

std::string CudaBufferType::name() const {
  return device_.name();
}
Device& CudaBufferType::device() const {
  return device_;
}

std::unique_ptr<Buffer> CudaBufferType::allocate(size_t size) {
  const CurrentGpu current(device_.gpu().traits.gpu);
  device_.take(size);
  void* data = nullptr;
  const cudaStream_t stream = device_.gpu().transfers();
  // The allocation is an operation of the transfer stream. Other streams can use the memory after the transfer stream
  // has reached this operation.
  cudaError_t status = cudaMallocAsync(&data, whole_granules(size), stream);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    cudaStreamSynchronize(stream);
    trim_pool(device_.gpu().traits.gpu);
    status = cudaMallocAsync(&data, whole_granules(size), stream);
  }
  if (status == cudaSuccess) status = cudaStreamSynchronize(stream);
  if (status == cudaSuccess) {
    return std::make_unique<CudaBuffer>(*this, static_cast<std::byte*>(data), size);
  }
  device_.give_back(size);
  cudaGetLastError();
  if (status != cudaErrorMemoryAllocation) check(status, device_.name(), "allocate memory");
  fail<OutOfMemory>("[{}] out of memory: {} requested, {} free: use more devices, or give this device a smaller share",
                    device_.name(), format_bytes(size), format_bytes(device_.memory().free));
}

std::string PinnedBufferType::name() const {
  return device_.name() + "_Pinned";
}
Device& PinnedBufferType::device() const {
  return device_;
}

std::unique_ptr<Buffer> PinnedBufferType::allocate(size_t size) {
  const CurrentGpu current(device_.gpu().traits.gpu);
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, whole_granules(size), cudaHostAllocPortable | cudaHostAllocMapped);
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail<OutOfMemory>("[{}] cannot pin {} of host memory ({}): free memory, or raise the limit of locked memory",
                      device_.name(), format_bytes(size), cudaGetErrorString(status));
  }
  return std::make_unique<PinnedBuffer>(*this, static_cast<std::byte*>(data), size);
}

bool is_pageable(const void* address) {
  cudaPointerAttributes host{};
  const bool is_known = cudaPointerGetAttributes(&host, address) == cudaSuccess;
  if (!is_known) cudaGetLastError();
  return !is_known || host.type == cudaMemoryTypeUnregistered;
}

cudaError_t copy_rows_to_gpu(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows,
                             cudaStream_t stream) {
  const auto* from = static_cast<const std::byte*>(data);
  if (tensor.is_contiguous() && rows.rows > 1) {
    return cudaMemcpy2DAsync(tensor.data + rows.offset, rows.stride, from, host_stride, rows.row_bytes, rows.rows,
                             cudaMemcpyHostToDevice, stream);
  }
  return for_each_row_piece(tensor, host_stride, rows, [&](std::byte* to, size_t at, size_t length) {
    return cudaMemcpyAsync(to, from + at, length, cudaMemcpyHostToDevice, stream);
  });
}

cudaError_t copy_rows_from_gpu(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows,
                               cudaStream_t stream) {
  auto* to = static_cast<std::byte*>(data);
  if (tensor.is_contiguous() && rows.rows > 1) {
    return cudaMemcpy2DAsync(to, host_stride, tensor.data + rows.offset, rows.stride, rows.row_bytes, rows.rows,
                             cudaMemcpyDeviceToHost, stream);
  }
  return for_each_row_piece(tensor, host_stride, rows, [&](const std::byte* from, size_t at, size_t length) {
    return cudaMemcpyAsync(to + at, from, length, cudaMemcpyDeviceToHost, stream);
  });
}

cudaError_t copy_contiguous(const Tensor& src, Tensor& dst, cudaStream_t stream) {
  const int from = cuda_device_of(src)->gpu().traits.gpu, to = cuda_device_of(dst)->gpu().traits.gpu;
  if (from == to) return cudaMemcpyAsync(dst.data, src.data, src.bytes(), cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(dst.data, to, src.data, from, src.bytes(), stream);
}

CudaDevice* cuda_device_of(const Tensor& tensor) {
  if (tensor.buffer == nullptr) return nullptr;
  const auto* type = dynamic_cast<const CudaBufferType*>(&tensor.buffer->type());
  return type != nullptr ? &type->cuda_device() : nullptr;
}

}  // namespace shoal::cuda
