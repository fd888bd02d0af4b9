// Memory of a device: a BufferType allocates, a Buffer is one allocation (or several that act as one). A Buffer frees
// its memory when destroyed. Tensors in it that still exist are then unplaced and can be placed again; tensors may also
// be destroyed first. Queries are thread-safe. The functions set, get and copy block the caller. They must not run
// while queued work uses the same bytes (use Backend::synchronize or events to order them). Offsets and sizes count
// bytes of the tensor's stored form, in the order of a contiguous tensor of its shape. So byte i of a tensor has the
// same meaning on every device, including devices that shard the tensor.
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

/// kCompute: memory of plans, which unplace their tensors themselves.
enum class Usage : uint8_t { kAny, kWeights, kCompute };

class BufferType {
 public:
  virtual ~BufferType() = default;
  virtual std::string name() const = 0;
  virtual Device& device() const = 0;
  /// Never returns nullptr. Size 0 is allowed. Throws DeviceError naming the device, the requested and the free bytes.
  virtual std::unique_ptr<Buffer> allocate(size_t size) = 0;
  virtual size_t alignment() const { return 64; }
  /// Allocates memory for tensors that own their bytes, and places them. If they exceed max_size, the result is a
  /// multi-buffer. All or nothing. See devices/allocate.h for the default layout.
  virtual std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, Usage usage);
  /// Largest single allocation; larger sets of tensors get several buffers.
  virtual size_t max_size() const { return std::numeric_limits<size_t>::max(); }
  /// Bytes that the tensor needs here, padding included, before rounding to the alignment.
  virtual size_t alloc_size(const Tensor& tensor) const { return tensor.bytes(); }
  /// Whether the bytes are in host memory in the standard layout, so that Tensor::data can be dereferenced.
  virtual bool is_host() const { return false; }
};

/// A rectangle of bytes: `rows` rows of `row_bytes` bytes each. Successive rows start `stride` bytes apart.
struct Rows {
  size_t offset = 0;  ///< offset of the first row in the tensor
  size_t row_bytes = 0;
  size_t rows = 0;
  size_t stride = 0;  ///< stride in the tensor
};

/// Copies bytes of a tensor to host memory `to`, in stored order from byte `offset` on. May be called by several
/// threads concurrently, for any bytes and in any order.
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
  /// First address, aligned. A device without addresses returns a stable fake address.
  virtual std::byte* base() const = 0;

  Usage usage() const { return usage_; }
  virtual void set_usage(Usage usage) { usage_ = usage; }

  /// Places a tensor that owns its bytes at base() + offset: sets its buffer and data and calls init_tensor. Throws
  /// InvalidArgument if the tensor is already placed, is misaligned or does not fit.
  void place(Tensor& tensor, size_t offset);
  /// Sets the buffer and data of a view from its base, which must be placed, and calls init_tensor.
  static void place_view(Tensor& view);
  /// Makes `tensor` an alias of `placed`, which is in this buffer. Throws InvalidArgument if their dtype, shape or
  /// strides differ or if `tensor` is already placed.
  void alias(Tensor& tensor, const Tensor& placed);
  /// Undoes alias(), place_view() or place(): the tensor no longer has memory. The bytes and other tensors at the same
  /// address are not affected. Must be called before this buffer is destroyed. If the buffer outlives the tensor,
  /// unplace() must also be called before the tensor is destroyed, because another tensor may get its address. For a
  /// tensor from place(), the call waits for holders of the buffer, and plans that read the buffer can no longer run
  /// (see generation()). Throws InvalidArgument if the tensor is not in this buffer.
  void unplace(Tensor& tensor);
  /// A hook that is called once for each tensor placed here.
  virtual void init_tensor(Tensor&) {}

  /// Blocks. Throws InvalidArgument if [offset, offset + size) is outside the tensor.
  void set(Tensor& tensor, const void* data, size_t offset, size_t size);
  void get(const Tensor& tensor, void* data, size_t offset, size_t size);
  /// Like set(), but `read` supplies the bytes [offset, offset + size). `read` writes into the tensor's memory if the
  /// host can access it, otherwise into a staging buffer of the calling thread. Also throws the exceptions of `read`.
  void fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read);
  void memset(Tensor& tensor, uint8_t value, size_t offset, size_t size);
  /// Copies rows. The stride of the rows in host memory may differ from their stride in the tensor.
  void set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  void get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  /// Copies all of src (in this or another buffer) directly to dst (in this buffer). Both have the same dtype and shape
  /// and are contiguous. Returns false if this pair is not supported; the caller then copies through host memory.
  virtual bool copy_tensor(const Tensor& src, Tensor& dst) {
    (void)src, (void)dst;
    return false;
  }
  /// Like copy_tensor(), but called on src's buffer. Used if dst's buffer cannot copy directly.
  virtual bool copy_to(const Tensor& src, Tensor& dst) {
    (void)src, (void)dst;
    return false;
  }
  /// Sets every byte of the buffer.
  virtual void clear(uint8_t value) = 0;
  /// Unplaces all tensors in this buffer. Waits for holders of the buffer.
  void reset();
  /// Unique for each buffer. It changes when the buffer is reset or a tensor from place() is unplaced. Plans compare it
  /// to notice that their tensors have moved.
  uint64_t generation() const { return life_.generation; }
  /// A reference for code that must detect that the buffer was destroyed or reset.
  BufferRef ref() const { return BufferRef(life_); }
  /// The buffers of a multi-buffer; empty for other buffers.
  virtual std::span<const std::unique_ptr<Buffer>> parts() const { return {}; }
  bool is_multi() const { return !parts().empty(); }

 protected:
  // These functions implement set, get and memset. The caller has checked the ranges.
  virtual void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) = 0;
  virtual void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) = 0;
  virtual void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) = 0;
  // By default reads the bytes into host memory, then sets them.
  virtual void do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read);
  // By default calls do_set() or do_get() for each row.
  virtual void do_set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  virtual void do_get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  virtual void do_reset() {}
  virtual void do_alias(Tensor& tensor, const Tensor& placed);
  /// Undoes init_tensor or do_alias. May refuse with InvalidArgument.
  virtual void do_unplace(Tensor&) {}
  /// Registers a tensor that was placed here, so that the buffer unplaces it when destroyed. place() and similar calls
  /// do this. Skipped for compute memory: plans have thousands of nodes and unplace them themselves.
  void register_tensor(Tensor& tensor, bool is_alias = false) {
    if (usage_ != Usage::kCompute) placed_.add(tensor, is_alias);
  }
  /// Unplaces all tensors and waits for holders of the buffer. The destructor of a buffer with memory of its own calls
  /// this first.
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

/// Combines several buffers into one. Its usage, clear() and reset() apply to all parts. Each tensor stays in its part.
std::unique_ptr<Buffer> make_multi_buffer(std::vector<std::unique_ptr<Buffer>> parts);

/// Blocking access through the tensor's own buffer. Throws InvalidArgument if it has none.
void tensor_set(Tensor& tensor, const void* data, size_t offset, size_t size);
void tensor_get(const Tensor& tensor, void* data, size_t offset, size_t size);
/// Copies a whole tensor to one of the same dtype and shape: directly if possible, otherwise through host memory.
void tensor_copy(const Tensor& src, Tensor& dst);
/// Throws InvalidArgument if a queued set_2d or get_2d would fail. `what` names the call in the message.
void check_access(std::string_view what, const Tensor& tensor, size_t host_stride, const Rows& rows);
/// Throws InvalidArgument if the buffer was freed or reset while `what` on a tensor in it was queued.
void check_held(const HeldBuffer& held, std::string_view what);
/// Throws InvalidArgument if a queued tensor_copy would fail.
void check_copy(const Tensor& src, const Tensor& dst);

}  // namespace shoal
