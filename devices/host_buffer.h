// HostBuffer: a buffer whose bytes this process can address, whoever allocated them. What frees them is up to the
// subclass. Thread-safe as devices/buffer.h says.
#pragma once

#include "devices/buffer.h"

namespace shoal {

class HostBuffer : public Buffer {
 public:
  HostBuffer(BufferType& type, std::byte* data, size_t size) : Buffer(type, size), data_(data) {}

  std::byte* base() const override { return data_; }
  void clear(uint8_t value) override;
  /// Directly, where both types are host memory for everybody (BufferType::is_host).
  bool copy_tensor(const Tensor& src, Tensor& dst) override;

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override;
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override;
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override;

  std::byte* data_;
};

/// One with memory of its own, aligned as the type says. Throws OutOfMemory, naming the device, when it is more than
/// Device::memory says is free.
std::unique_ptr<Buffer> allocate_host_buffer(BufferType& type, size_t size);

}  // namespace shoal
