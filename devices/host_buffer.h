// Buffers whose bytes this process can address. CPU devices use these buffers. Other devices that compute in host
// memory also use these buffers, even if they do not expose the memory (BufferType::is_host is false). Host buffers
// also stage copies between devices. Thread safety is as in devices/buffer.h.
#pragma once

#include <memory>

#include "devices/buffer.h"

namespace shoal {

/// Does not own the bytes. Subclasses free the bytes.
class HostBuffer : public Buffer {
 public:
  HostBuffer(BufferType& type, std::byte* data, size_t size) : Buffer(type, size), data_(data) {}

  std::byte* base() const override { return data_; }
  /// Copies and returns true if the buffers of `src` and `dst` are plain host memory.
  bool copy_tensor(const Tensor& src, Tensor& dst) override;
  void clear(uint8_t value) override;

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override;
  void do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) override;
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override;
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override;

  std::byte* data_;
};

/// Allocates process memory with the type's alignment. If the size exceeds the free bytes of Device::memory, throws
/// OutOfMemory that names the device.
std::unique_ptr<Buffer> allocate_host_buffer(BufferType& type, size_t size);

/// Pageable process memory, for devices that have no host buffer type of their own (Device::host_buffer_type).
class HostBufferType final : public BufferType {
 public:
  explicit HostBufferType(Device& device) : device_(device) {}
  std::string name() const override { return "Host"; }
  Device& device() const override { return device_; }
  std::unique_ptr<Buffer> allocate(size_t size) override;
  bool is_host() const override { return true; }

 private:
  Device& device_;
};

}  // namespace shoal
