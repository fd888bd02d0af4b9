#include "devices/cpu/cpu_buffer.h"

#include <algorithm>
#include <cstring>

#include "devices/cpu/cpu_family.h"
#include "devices/cpu/topology.h"
#include "devices/params.h"
#include "devices/strided.h"
#include "graph/error.h"

namespace shoal::cpu {
namespace {

/// Bytes in host memory; what frees them is up to the subclass.
class HostBuffer : public Buffer {
 public:
  HostBuffer(BufferType& type, std::byte* data, size_t size) : Buffer(type, size), data_(data) {}

  std::byte* base() const override { return data_; }
  bool copy_tensor(const Tensor& src, Tensor& dst) override {
    if (!src.buffer->is_host()) return false;
    std::memmove(dst.data, src.data, src.bytes());
    return true;
  }
  void clear(uint8_t value) override { std::fill_n(data_, size(), std::byte{value}); }

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override {
    const auto* from = static_cast<const std::byte*>(data);
    for_each_piece(tensor, offset, size,
                   [&](size_t at, size_t done, size_t length) { std::memcpy(tensor.data + at, from + done, length); });
  }
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override {
    auto* to = static_cast<std::byte*>(data);
    for_each_piece(tensor, offset, size,
                   [&](size_t at, size_t done, size_t length) { std::memcpy(to + done, tensor.data + at, length); });
  }
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override {
    for_each_piece(tensor, offset, size,
                   [&](size_t at, size_t, size_t length) { std::fill_n(tensor.data + at, length, std::byte{value}); });
  }

  std::byte* data_;
};

class OwnedBuffer final : public HostBuffer {
 public:
  /// Takes over `data`, made by allocate_on_node, and what the device counted for it.
  OwnedBuffer(BufferType& type, CpuDevice& device, std::byte* data, size_t size)
      : HostBuffer(type, data, size), device_(device), use_(device) {}
  ~OwnedBuffer() override {
    free_memory(data_);
    device_.give_back(size());
  }

 private:
  CpuDevice& device_;
  DeviceUse use_;
};

class WrappedBuffer final : public HostBuffer {
 public:
  WrappedBuffer(BufferType& type, CpuDevice& device, std::byte* data, size_t size)
      : HostBuffer(type, data, size), use_(device) {}

 private:
  DeviceUse use_;
};

}  // namespace

std::string CpuBufferType::name() const {
  return device_.name();
}
Device& CpuBufferType::device() const {
  return device_;
}
size_t CpuBufferType::max_size() const {
  return device_.max_size();
}

std::unique_ptr<Buffer> CpuBufferType::allocate(size_t size) {
  device_.take(size);
  void* data = allocate_on_node(size, device_.node());
  if (data == nullptr) {
    device_.give_back(size);
    fail<DeviceError>("[{}] the system refused {}; {} free: free memory, or spread the tensors over more devices",
                      device_.name(), format_bytes(size), format_bytes(device_.memory().free));
  }
  return std::make_unique<OwnedBuffer>(*this, device_, static_cast<std::byte*>(data), size);
}

std::string MappedBufferType::name() const {
  return device_.name() + "_Mapped";
}

std::unique_ptr<Buffer> MappedBufferType::wrap(void* data, size_t size) {
  require<InvalidArgument>(data != nullptr || size == 0, "[{}] there is no memory at a null pointer", device_.name());
  return std::make_unique<WrappedBuffer>(*this, device_, static_cast<std::byte*>(data), size);
}

}  // namespace shoal::cpu
