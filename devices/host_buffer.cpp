#include "devices/host_buffer.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/text.h"
#include "devices/device.h"
#include "devices/strided.h"

namespace shoal {
namespace {

class HeapBuffer final : public HostBuffer {
 public:
  HeapBuffer(BufferType& type, std::byte* data, size_t size) : HostBuffer(type, data, size) {}
  ~HeapBuffer() override {
    close();
    ::operator delete (base(), std::align_val_t{type().alignment()});
  }
};

std::unique_ptr<Buffer> heap_buffer(BufferType& type, size_t size) {
  void* data = ::operator new (size, std::align_val_t{type.alignment()}, std::nothrow);
  require<OutOfMemory>(data != nullptr, "the system refused to allocate {} of host memory", format_bytes(size));
  return std::make_unique<HeapBuffer>(type, static_cast<std::byte*>(data), size);
}

}  // namespace

bool HostBuffer::copy_tensor(const Tensor& src, Tensor& dst) {
  if (!is_host() || !src.buffer->is_host()) return false;
  std::memmove(dst.data, src.data, src.bytes());
  return true;
}

void HostBuffer::clear(uint8_t value) {
  std::fill_n(data_, size(), std::byte{value});
}

void HostBuffer::do_set(Tensor& tensor, const void* data, size_t offset, size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  for_each_piece(tensor, offset, size,
                 [&](size_t at, size_t done, size_t length) { std::memcpy(tensor.data + at, from + done, length); });
}

void HostBuffer::do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) {
  if (!is_host() || !tensor.is_contiguous()) return Buffer::do_fill(tensor, offset, size, read);
  read(offset, {tensor.data + offset, size});
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
  require<OutOfMemory>(size <= free, "[{}] out of memory: {} requested, {} free: use more devices, or a smaller share",
                       type.device().name(), format_bytes(size), format_bytes(free));
  return heap_buffer(type, size);
}

std::unique_ptr<Buffer> HostBufferType::allocate(size_t size) {
  return heap_buffer(*this, size);
}

}  // namespace shoal
