#include "devices/host_buffer.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "devices/device.h"
#include "devices/params.h"
#include "devices/strided.h"
#include "graph/error.h"

namespace shoal {
namespace {

class OwnedHostBuffer final : public HostBuffer {
 public:
  OwnedHostBuffer(BufferType& type, size_t size, std::align_val_t alignment)
      : HostBuffer(type, static_cast<std::byte*>(operator new(size, alignment)), size), alignment_(alignment) {}
  ~OwnedHostBuffer() override { operator delete(data_, alignment_); }

 private:
  std::align_val_t alignment_;
};

}  // namespace

void HostBuffer::clear(uint8_t value) {
  std::fill_n(data_, size(), std::byte{value});
}

bool HostBuffer::copy_tensor(const Tensor& src, Tensor& dst) {
  if (!is_host() || !src.buffer->is_host()) return false;
  std::memmove(dst.data, src.data, src.bytes());
  return true;
}

void HostBuffer::do_set(Tensor& tensor, const void* data, size_t offset, size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  for_each_piece(tensor, offset, size,
                 [&](size_t at, size_t done, size_t length) { std::memcpy(tensor.data + at, from + done, length); });
}

void HostBuffer::do_get(const Tensor& tensor, void* data, size_t offset, size_t size) {
  auto* to = static_cast<std::byte*>(data);
  for_each_piece(tensor, offset, size,
                 [&](size_t at, size_t done, size_t length) { std::memcpy(to + done, tensor.data + at, length); });
}

void HostBuffer::do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) {
  for_each_piece(tensor, offset, size,
                 [&](size_t at, size_t, size_t length) { std::fill_n(tensor.data + at, length, std::byte{value}); });
}

std::unique_ptr<Buffer> allocate_host_buffer(BufferType& type, size_t size) {
  const size_t free = type.device().memory().free;
  if (size <= free) return std::make_unique<OwnedHostBuffer>(type, size, std::align_val_t{type.alignment()});
  fail<OutOfMemory>("[{}] out of memory: {} asked for, {} free: use more devices, or give this one a smaller share",
                    type.device().name(), format_bytes(size), format_bytes(free));
}

}  // namespace shoal
