#include "devices/cpu/cpu_buffer.h"

#include "base/error.h"
#include "base/text.h"
#include "devices/cpu/cpu_family.h"
#include "devices/cpu/topology.h"
#include "devices/host_buffer.h"

namespace shoal::cpu {
namespace {

class OwnedBuffer final : public HostBuffer {
 public:
  /// Takes ownership of `data`, which allocate_on_node() returned. The device has already counted the `size` bytes.
  OwnedBuffer(BufferType& type, CpuDevice& device, std::byte* data, size_t size)
      : HostBuffer(type, data, size), device_(device), use_(device) {}
  ~OwnedBuffer() override {
    close();
    free_memory(base(), size());
    device_.give_back(size());
  }
  void clear(uint8_t value) override { value == 0 ? zero_memory(base(), size()) : HostBuffer::clear(value); }

 private:
  CpuDevice& device_;
  DeviceUse use_;
};

class WrappedBuffer final : public HostBuffer {
 public:
  WrappedBuffer(BufferType& type, CpuDevice& device, std::byte* data, size_t size)
      : HostBuffer(type, data, size), use_(device) {}
  ~WrappedBuffer() override { close(); }

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

std::byte* CpuBufferType::allocate_memory(size_t size) {
  device_.take(size);
  void* data = allocate_on_node(size, device_.node());
  if (data == nullptr) {
    device_.give_back(size);
    fail<DeviceError>("[{}] the system refused to allocate {}; {} are free: release memory, or use more devices",
                      device_.name(), format_bytes(size), format_bytes(device_.memory().free));
  }
  return static_cast<std::byte*>(data);
}

std::unique_ptr<Buffer> CpuBufferType::allocate(size_t size) {
  std::byte* data = allocate_memory(size);
  return std::make_unique<OwnedBuffer>(*this, device_, data, size);
}

std::string MappedBufferType::name() const {
  return device_.name() + "_Mapped";
}

std::unique_ptr<Buffer> MappedBufferType::wrap(void* data, size_t size) {
  require<InvalidArgument>(data != nullptr || size == 0, "[{}] cannot wrap a null pointer as memory", device_.name());
  return std::make_unique<WrappedBuffer>(*this, device_, static_cast<std::byte*>(data), size);
}

}  // namespace shoal::cpu
