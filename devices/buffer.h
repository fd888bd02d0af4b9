// Memory of a device: BufferType allocates, Buffer is one allocation (or several behind one face).
// A Buffer frees its memory when destroyed; tensors placed in it that are still there have no memory then, and can be
// placed again. Tensors may also go before it. Queries are thread-safe; set/get/copy are blocking and must not overlap
// with queued work on the same bytes (order it with Backend::synchronize or events). Offsets and sizes are in bytes of
// the tensor's stored form, in the order of a contiguous tensor of its shape: for every device, sharded ones included,
// byte i of a tensor means the same thing.
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

/// kCompute: of plans, which unplace their tensors by themselves.
enum class Usage : uint8_t { kAny, kWeights, kCompute };

class BufferType {
 public:
  virtual ~BufferType() = default;
  virtual std::string name() const = 0;
  virtual Device& device() const = 0;
  /// Never returns nullptr. Throws DeviceError naming device, size asked and free. Size 0 is allowed.
  virtual std::unique_ptr<Buffer> allocate(size_t size) = 0;
  virtual size_t alignment() const { return 64; }
  /// Allocates memory for tensors that own their bytes and places them; over several buffers past max_size
  /// (a multi-buffer then). All or nothing. See devices/allocate.h for the default's layout.
  virtual std::unique_ptr<Buffer> allocate_tensors(std::span<Tensor* const> tensors, Usage usage);
  /// Largest single allocation; allocators spread over several buffers past it.
  virtual size_t max_size() const { return std::numeric_limits<size_t>::max(); }
  /// Bytes the tensor needs here, padding included, before rounding to the alignment.
  virtual size_t alloc_size(const Tensor& tensor) const { return tensor.bytes(); }
  /// The bytes are in host memory in the standard layout: Tensor::data can be dereferenced.
  virtual bool is_host() const { return false; }
};

/// One rectangle of bytes: `rows` rows of `row_bytes`, their starts `stride` bytes apart.
struct Rows {
  size_t offset = 0;  ///< of the first row, in bytes
  size_t row_bytes = 0;
  size_t rows = 0;
  size_t stride = 0;  ///< inside the tensor
};

/// Gives bytes of a tensor, in its stored order from byte `offset` on, to memory of the host. May be called by several
/// threads at a time, for any bytes and in any order.
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
  /// First address (for a device without addresses of its own, a stable fake one). Aligned.
  virtual std::byte* base() const = 0;

  Usage usage() const { return usage_; }
  virtual void set_usage(Usage usage) { usage_ = usage; }

  /// Puts a tensor that owns its bytes at base() + offset: sets buffer and data and calls init_tensor.
  /// Throws InvalidArgument when it is placed already, misaligned, or does not fit.
  void place(Tensor& tensor, size_t offset);
  /// Gives a view its buffer and data from its base (which must be placed) and calls init_tensor.
  static void place_view(Tensor& view);
  /// Makes `tensor` another name of `placed`, which lies in this buffer: the same dtype, shape and strides, the same
  /// bytes. Throws InvalidArgument when they differ or `tensor` is placed already.
  void alias(Tensor& tensor, const Tensor& placed);
  /// Undoes alias(), place_view() or place(): the tensor has no memory any more. The bytes stay as they are, and so
  /// does what else lies there. To be called before this buffer goes, and before the tensor does where the buffer lives
  /// on: another tensor may come to lie at its address. After place(), plans that read the buffer do not run any more
  /// (see generation()), and the call waits for those who hold the buffer. Throws InvalidArgument when the tensor is
  /// not here.
  void forget(Tensor& tensor);
  /// Hook: called once for each tensor placed here.
  virtual void init_tensor(Tensor&) {}

  /// Blocking. Throws InvalidArgument when [offset, offset + size) is outside the tensor.
  void set(Tensor& tensor, const void* data, size_t offset, size_t size);
  void get(const Tensor& tensor, void* data, size_t offset, size_t size);
  /// As set(), with bytes [offset, offset + size) from where `read` gets them: straight into the tensor's memory where
  /// the host can write that, else through memory of this thread. Throws what `read` throws, too.
  void fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read);
  void memset(Tensor& tensor, uint8_t value, size_t offset, size_t size);
  /// Rows with a stride in the tensor and one in host memory.
  void set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  void get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  /// Copies all of src (in another or the same buffer; same dtype and shape, both contiguous) to dst (in this
  /// buffer) directly. False: not supported for this pair, go through the host.
  virtual bool copy_tensor(const Tensor& src, Tensor& dst) {
    (void)src, (void)dst;
    return false;
  }
  /// The same seen from the buffer that src is in: asked when dst's buffer knows no direct way from here.
  virtual bool copy_to(const Tensor& src, Tensor& dst) {
    (void)src, (void)dst;
    return false;
  }
  /// Sets every byte of the buffer.
  virtual void clear(uint8_t value) = 0;
  /// Unplaces all tensors that lie here. Waits for those who hold the buffer.
  void reset();
  /// Never the same for two buffers, nor for one before and after reset() or a forget() of what was placed: who keeps
  /// something about placed tensors (plans) can tell that they have moved.
  uint64_t generation() const { return life_.generation; }
  /// For those who may outlive the buffer, or see it reset.
  BufferRef ref() const { return BufferRef(life_); }
  /// The buffers that a multi-buffer is made of; empty for any other.
  virtual std::span<const std::unique_ptr<Buffer>> parts() const { return {}; }
  bool is_multi() const { return !parts().empty(); }

 protected:
  // The checked work behind set/get/memset; ranges are valid here.
  virtual void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) = 0;
  virtual void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) = 0;
  virtual void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) = 0;
  // Default: reads all of it, then sets it.
  virtual void do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read);
  // Default: a loop over the 1-d forms.
  virtual void do_set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows);
  virtual void do_get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows);
  virtual void do_reset() {}
  virtual void do_alias(Tensor& tensor, const Tensor& placed);
  /// Whatever init_tensor or do_alias remembered. May refuse with InvalidArgument.
  virtual void do_forget(Tensor&) {}
  /// The tensor, which lies here by now, is unplaced when the buffer goes. place() and the like do it. Compute memory
  /// leaves it to its plans, which have thousands of nodes and come and go.
  void remember(Tensor& tensor, bool is_alias = false) {
    if (usage_ != Usage::kCompute) placed_.add(tensor, is_alias);
  }
  /// Unplaces all tensors and waits for those who hold the buffer: the first thing that the destructor of a buffer with
  /// memory of its own does.
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

/// One Buffer made of several: usage, clear and reset reach all parts; tensors stay in the parts.
std::unique_ptr<Buffer> make_multi_buffer(std::vector<std::unique_ptr<Buffer>> parts);

/// Blocking access that finds the tensor's buffer. Throws InvalidArgument when it has none.
void tensor_set(Tensor& tensor, const void* data, size_t offset, size_t size);
void tensor_get(const Tensor& tensor, void* data, size_t offset, size_t size);
/// Whole tensor, by any route: direct copy, else through host memory. Same dtype and shape.
void tensor_copy(const Tensor& src, Tensor& dst);
/// Throws InvalidArgument when set_2d or get_2d (`what`, for the message) would: before it is queued.
void check_access(std::string_view what, const Tensor& tensor, size_t host_stride, const Rows& rows);
/// Throws InvalidArgument when the buffer has gone while `what` on a tensor in it was queued.
void check_held(const HeldBuffer& held, std::string_view what);
/// Throws InvalidArgument when tensor_copy would: before a copy is queued.
void check_copy(const Tensor& src, const Tensor& dst);

}  // namespace shoal
