// Buffers whose bytes this process can address: those of CPU devices, of devices that compute in host memory without
// showing it to others (BufferType::is_host is false), and memory for copies on their way between devices.
// Thread-safe as devices/buffer.h says.
#pragma once

#include <memory>

#include "devices/buffer.h"

namespace shoal {

/// What frees the bytes is up to the subclass.
class HostBuffer : public Buffer {
 public:
  HostBuffer(BufferType& type, std::byte* data, size_t size) : Buffer(type, size), data_(data) {}

  std::byte* base() const override { return data_; }
  /// Directly, where both types are plain host memory.
  bool copy_tensor(const Tensor& src, Tensor& dst) override;
  void clear(uint8_t value) override;

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override;
  void do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) override;
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override;
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override;

  std::byte* data_;
};

/// Memory of the process, aligned as the type says. Throws OutOfMemory, naming the device, when it is more than
/// Device::memory says is free.
std::unique_ptr<Buffer> allocate_host_buffer(BufferType& type, size_t size);

/// Pageable memory of the process, for devices that offer no host buffers of their own (Device::host_buffer_type).
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
