// Memory of a device: a BufferType allocates buffers. A Buffer is one allocation, or several allocations that act as
// one. The destructor of a Buffer frees its memory. Tensors in this memory are then unplaced and can be placed again. A
// tensor may also be destroyed before its buffer. Queries are thread-safe. The functions set, get and copy block the
// caller. They must not run while queued work uses the same bytes. The caller uses Backend::synchronize or events to
// prevent this. Offsets and sizes count bytes as in a contiguous tensor of the same dtype and shape. So byte i of a
// tensor has the same meaning on every device, including devices that shard the tensor.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "devices/buffer_life.h"
#include "devices/family_use.h"
#include "graph/tensor.h"

namespace shoal {

class Buffer;
class Device;

/// kCompute is the memory of plans. The plan itself unplaces the tensors in this memory.
enum class Usage : uint8_t { kAny, kWeights, kCompute };

class BufferType {
 public:
  virtual ~BufferType() = default;
  virtual std::string name() const = 0;
  virtual Device& device() const = 0;
  /// Never returns nullptr. Size 0 is allowed. Throws DeviceError that names the device, the requested bytes and the
  /// free bytes.
  virtual std::unique_ptr<Buffer> allocate(size_t size) = 0;
  virtual size_t alignment() const { return 64; }
  /// Allocates memory for tensors that own their bytes, and places the tensors. If the tensors exceed max_size(), the
  /// result is a multi-buffer. If the call fails, no tensor is placed. See devices/allocate.h for the default layout.
  virtual std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, Usage usage);
  /// Bytes of the largest possible allocation. A set of tensors that exceeds this size gets several buffers.
  virtual size_t max_size() const { return std::numeric_limits<size_t>::max(); }
  /// Bytes that the tensor needs in this memory, including padding, before rounding to the alignment.
  virtual size_t alloc_size(const Tensor& tensor) const { return tensor.bytes(); }
  /// Whether the bytes are in host memory in the standard layout. If true, the host can dereference Tensor::data.
  virtual bool is_host() const { return false; }
};

/// A rectangle of bytes that consists of `rows` rows of `row_bytes` bytes each. Successive rows start `stride` bytes
/// apart.
struct Rows {
  size_t offset = 0;  ///< offset of the first row in the tensor
  size_t row_bytes = 0;
  size_t rows = 0;
  size_t stride = 0;  ///< bytes in the tensor between the starts of successive rows
};

/// Copies bytes of a tensor to host memory `to`, beginning with byte `offset` of the tensor. Several threads may call
/// this function concurrently, for any bytes and in any order.
using ByteReader = std::function<void(size_t offset, std::span<std::byte> to)>;

class Buffer {
 public:
  Buffer(BufferType& type, size_t size);
  virtual ~Buffer() { close(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  BufferType& type() const { return type_; }
  size_t size() const { return size_; }
  size_t alignment() const { return type_.alignment(); }
  bool is_host() const { return type_.is_host(); }
  /// Aligned address of the buffer's first byte. A device without addresses returns a stable fake address.
  virtual std::byte* base() const = 0;

  Usage usage() const { return usage_; }
  virtual void set_usage(Usage usage) { usage_ = usage; }

  /// Places a tensor that owns its bytes at base() + offset. Sets the buffer and data of the tensor and calls
  /// init_tensor. Throws InvalidArgument if the tensor is already placed, is misaligned or does not fit.
  void place(Tensor& tensor, size_t offset);
  /// Derives the buffer and data of a view from the view's base and calls init_tensor. The base must be placed.
  static void place_view(Tensor& view);
  /// Makes `tensor` an alias of `placed`, which is in this buffer. Throws InvalidArgument if the tensors differ in
  /// dtype, shape or strides, or if `tensor` is already placed.
  void alias(Tensor& tensor, const Tensor& placed);
  /// Undoes alias(), place_view() or place(). After the call, the tensor has no memory. The bytes and other tensors at
  /// the same address are not affected. This buffer must still exist. If the buffer outlives the tensor, the caller
  /// must call this function before the tensor object is destroyed. Otherwise, another tensor object may get the same
  /// address. For a tensor that place() has placed outside compute memory, the call waits until no work holds the
  /// buffer, and plans that read the buffer can no longer run (see generation()). Throws InvalidArgument if the tensor
  /// is not in this buffer.
  void unplace(Tensor& tensor);
  /// This hook is called once for each tensor that is placed in the buffer.
  virtual void init_tensor(Tensor&) {}

  /// Blocks until the copy is done. Throws InvalidArgument if [offset, offset + size) is outside the tensor.
  void set(Tensor& tensor, const void* data, size_t offset, size_t size);
  void get(const Tensor& tensor, void* data, size_t offset, size_t size);
  /// Like set(), but `read` supplies the bytes [offset, offset + size). If the host can access the tensor's memory,
  /// `read` writes into this memory. Otherwise `read` writes into a staging buffer of the calling thread. Also throws
  /// the exceptions of `read`.
  void fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read);
  void memset(Tensor& tensor, uint8_t value, size_t offset, size_t size);
  /// Copies rows. The stride of the rows in host memory may differ from their stride in the tensor.
  void set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  void get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  /// Copies all of src (in this or another buffer) directly to dst (in this buffer). Both tensors have the same dtype
  /// and shape and are contiguous. Returns false if the buffers do not support this copy. In this case, the caller
  /// copies through host memory.
  virtual bool copy_tensor(const Tensor& src, Tensor& dst) {
    (void)src, (void)dst;
    return false;
  }
  /// Like copy_tensor(), but src is in this buffer. This function is called if dst's buffer cannot copy directly.
  virtual bool copy_to(const Tensor& src, Tensor& dst) {
    (void)src, (void)dst;
    return false;
  }
  /// Sets every byte of the buffer.
  virtual void clear(uint8_t value) = 0;
  /// Unplaces all tensors in this buffer. Waits until no work holds the buffer.
  void reset();
  /// A number that is unique for each buffer. The number changes when the buffer is reset or a tensor from place() is
  /// unplaced. Plans compare this number to notice that their tensors have moved.
  uint64_t generation() const { return life_.generation; }
  /// A reference with which code can detect that the buffer was destroyed or reset.
  BufferRef ref() const { return BufferRef(life_); }
  /// The buffers of a multi-buffer; empty for other buffers.
  virtual std::span<const std::unique_ptr<Buffer>> parts() const { return {}; }
  bool is_multi() const { return !parts().empty(); }

 protected:
  // These functions implement set, get and memset. The caller has checked the ranges.
  virtual void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) = 0;
  virtual void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) = 0;
  virtual void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) = 0;
  // The default reads the bytes into host memory, then calls do_set().
  virtual void do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read);
  // The defaults call do_set() or do_get() for each row.
  virtual void do_set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  virtual void do_get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  virtual void do_reset() {}
  virtual void do_alias(Tensor& tensor, const Tensor& placed);
  /// Undoes init_tensor or do_alias. To reject the call, an override may throw InvalidArgument.
  virtual void do_unplace(Tensor&) {}
  /// Registers a tensor that was placed here, so that the destructor of the buffer unplaces it. place(), place_view()
  /// and alias() call this function. Tensors in compute memory are not registered, because a plan itself unplaces its
  /// thousands of nodes.
  void register_tensor(Tensor& tensor, bool is_alias = false) {
    if (usage_ != Usage::kCompute) placed_.add(tensor, is_alias);
  }
  /// Unplaces all tensors and waits until no work holds the buffer. The destructor of a buffer that owns memory calls
  /// this function before it frees the memory.
  void close() noexcept;

 private:
  void attach(Tensor& tensor, std::byte* data);

  FamilyUse use_;
  BufferType& type_;
  size_t size_;
  Usage usage_ = Usage::kAny;
  bool is_closed_ = false;
  BufferLife& life_;
  PlacedTensors placed_;
};

/// Combines several buffers into one. usage(), clear() and reset() of the result apply to all parts. Placed tensors
/// remain in their parts.
std::unique_ptr<Buffer> make_multi_buffer(std::vector<std::unique_ptr<Buffer>> parts);

/// Blocking access through the tensor's own buffer. Throws InvalidArgument if the tensor has no buffer.
void tensor_set(Tensor& tensor, const void* data, size_t offset, size_t size);
void tensor_get(const Tensor& tensor, void* data, size_t offset, size_t size);
/// Copies a whole tensor to a tensor of the same dtype and shape. The copy is direct if possible, and otherwise passes
/// through host memory.
void tensor_copy(const Tensor& src, Tensor& dst);
/// Throws InvalidArgument if a queued set_2d or get_2d would fail. `what` names the call in the message.
void check_access(std::string_view what, const Tensor& tensor, size_t host_stride, const Rows& rows);
/// Throws InvalidArgument if the buffer was freed or reset while an operation on a tensor in this buffer was queued.
/// `what` names the operation in the message.
void check_held(const HeldBuffer& held, std::string_view what);
/// Throws InvalidArgument if a queued tensor_copy would fail.
void check_copy(const Tensor& src, const Tensor& dst);

}  // namespace shoal
