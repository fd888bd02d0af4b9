// Memory of CPU devices. It is allocated on the device's NUMA node, or it is existing host memory that a buffer wraps
// without a copy. Thread safety is as in devices/buffer.h.
#pragma once

#include <memory>

#include "devices/buffer.h"

namespace shoal::cpu {

class CpuDevice;

class CpuBufferType : public BufferType {
 public:
  explicit CpuBufferType(CpuDevice& device) : device_(device) {}
  std::string name() const override;
  Device& device() const override;
  std::unique_ptr<Buffer> allocate(size_t size) override;
  size_t max_size() const override;
  bool is_host() const override { return true; }

 protected:
  /// Allocates memory on the device's node and counts the allocated bytes for the device. Callers free the memory with
  /// free_memory(). Throws DeviceError.
  std::byte* allocate_memory(size_t size);

  CpuDevice& device_;
};

/// Type of wrapped host memory. A tensor in a mapped file has the alignment of the file, which is at least 8 bytes.
class MappedBufferType final : public CpuBufferType {
 public:
  using CpuBufferType::CpuBufferType;
  std::string name() const override;
  size_t alignment() const override { return 8; }
  std::unique_ptr<Buffer> wrap(void* data, size_t size);
};

}  // namespace shoal::cpu
