#include "devices/buffer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace shoal {
namespace {

void check_range(std::string_view what, const Tensor& tensor, size_t offset, size_t size) {
  const size_t bytes = tensor.bytes();
  require<InvalidArgument>(offset <= bytes && size <= bytes - offset,
                           "[{} {}] bytes [{}, {} + {}) are outside the tensor's {} bytes", what, tensor.name, offset,
                           offset, size, bytes);
}

/// Checks that a rectangle of bytes is inside the tensor. The check does not overflow, even for huge values.
void check_rows(std::string_view what, const Tensor& tensor, size_t host_stride, const Rows& rows) {
  if (rows.rows == 0 || rows.row_bytes == 0) return;
  const size_t bytes = tensor.bytes();
  bool inside = rows.offset <= bytes && rows.row_bytes <= bytes - rows.offset;
  if (inside && rows.rows > 1) {
    const size_t room = bytes - rows.offset - rows.row_bytes;
    inside = rows.stride <= room / (rows.rows - 1);
  }
  require<InvalidArgument>(inside,
                           "[{} {}] {} rows of {} bytes (stride {}, first byte {}) exceed the tensor's {} bytes", what,
                           tensor.name, rows.rows, rows.row_bytes, rows.stride, rows.offset, bytes);
  require<InvalidArgument>(rows.rows == 1 || (host_stride >= rows.row_bytes && rows.stride >= rows.row_bytes),
                           "[{} {}] rows of {} bytes overlap: their stride is {} in the tensor and {} in host memory",
                           what, tensor.name, rows.row_bytes, rows.stride, host_stride);
}

Buffer& buffer_of(std::string_view what, const Tensor& tensor) {
  if (tensor.buffer != nullptr) return *tensor.buffer;
  if (tensor.storage()->is_persistent()) {
    fail<InvalidArgument>("[{} {}] the tensor has no memory: place it in a buffer first (allocate_tensors)", what,
                          tensor.name);
  }
  fail<InvalidArgument>("[{} {}] {} has no memory: plan its graph first (Backend::create_plan, Scheduler::allocate)",
                        what, tensor.name, tensor.is_leaf() ? "an input" : "a node");
}

void check_holds(std::string_view what, const Buffer& buffer, const Tensor& tensor) {
  require<InvalidArgument>(&buffer_of(what, tensor) == &buffer || buffer.is_multi(),
                           "[{} {}] the tensor is placed in another buffer", what, tensor.name);
}

/// A pool that contains a BufferLife for each existing buffer.
class LifePool {
 public:
  static LifePool& instance() {
    static LifePool& pool = *new LifePool;
    return pool;
  }
  BufferLife& take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.reserve(all_.size() + 1);
      free_.push_back(&all_.emplace_back());
    }
    BufferLife& life = *free_.back();
    free_.pop_back();
    life.generation = ++generations_;
    return life;
  }
  void give_back(BufferLife& life) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(&life);
  }
  /// Invalidates all references to the buffer and waits until no work holds the buffer.
  void advance(BufferLife& life) noexcept {
    life.generation = ++generations_;
    while (life.holds != 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

 private:
  std::mutex mutex_;
  std::atomic<uint64_t> generations_{0};
  std::deque<BufferLife> all_;
  std::vector<BufferLife*> free_;
};

/// Several buffers (parts) that act as one buffer. Each tensor is placed in one part, and Tensor::buffer is that part.
/// The multi-buffer only forwards calls to its parts.
class MultiBuffer final : public Buffer {
 public:
  explicit MultiBuffer(std::vector<std::unique_ptr<Buffer>> parts)
      : Buffer(parts.front()->type(), total(parts)), parts_(std::move(parts)) {}

  std::byte* base() const override { return parts_.front()->base(); }
  void set_usage(Usage usage) override {
    Buffer::set_usage(usage);
    for (auto& part : parts_) part->set_usage(usage);
  }
  bool copy_tensor(const Tensor& src, Tensor& dst) override { return dst.buffer->copy_tensor(src, dst); }
  void clear(uint8_t value) override {
    for (auto& part : parts_) part->clear(value);
  }
  std::span<const std::unique_ptr<Buffer>> parts() const override { return parts_; }

 protected:
  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override {
    tensor.buffer->set(tensor, data, offset, size);
  }
  void do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) override {
    tensor.buffer->fill(tensor, offset, size, read);
  }
  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override {
    tensor.buffer->get(tensor, data, offset, size);
  }
  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override {
    tensor.buffer->memset(tensor, value, offset, size);
  }
  void do_reset() override {
    for (auto& part : parts_) part->reset();
  }

 private:
  static size_t total(const std::vector<std::unique_ptr<Buffer>>& parts) {
    size_t sum = 0;
    for (const auto& part : parts) sum += part->size();
    return sum;
  }

  std::vector<std::unique_ptr<Buffer>> parts_;
};

}  // namespace

Buffer::Buffer(BufferType& type, size_t size)
    : use_(type), type_(type), size_(size), life_(LifePool::instance().take()) {}

void Buffer::close() noexcept {
  if (is_closed_) return;
  is_closed_ = true;
  LifePool::instance().advance(life_);
  placed_.unplace_all(this);
  LifePool::instance().give_back(life_);
}

void Buffer::reset() {
  LifePool::instance().advance(life_);
  placed_.unplace_all(this);
  do_reset();
}

// If init_tensor throws, the tensor keeps its previous state.
void Buffer::attach(Tensor& tensor, std::byte* data) {
  const auto before = std::pair(tensor.buffer, tensor.data);
  tensor.buffer = this;
  tensor.data = data;
  try {
    init_tensor(tensor);
  } catch (...) {
    std::tie(tensor.buffer, tensor.data) = before;
    throw;
  }
  register_tensor(tensor);
}

void Buffer::place(Tensor& tensor, size_t offset) {
  require<InvalidArgument>(!is_multi(), "[place {}] cannot place a tensor in a multi-buffer: use a part of the buffer",
                           tensor.name);
  require<InvalidArgument>(!tensor.is_view(), "[place {}] a view gets its address from its base: use place_view",
                           tensor.name);
  require<InvalidArgument>(tensor.buffer == nullptr, "[place {}] the tensor is placed already", tensor.name);
  require<InvalidArgument>(reinterpret_cast<uintptr_t>(base() + offset) % alignment() == 0,
                           "[place {}] offset {} is not aligned to {} bytes", tensor.name, offset, alignment());
  const size_t need = type_.alloc_size(tensor);
  require<InvalidArgument>(offset <= size_ && need <= size_ - offset,
                           "[place {}] {} bytes at offset {} do not fit in a buffer of {} bytes", tensor.name, need,
                           offset, size_);
  attach(tensor, base() + offset);
}

void Buffer::place_view(Tensor& view) {
  require<InvalidArgument>(view.is_view(), "[place {}] the tensor is not a view", view.name);
  const Tensor& owner = *view.view_base;
  Buffer& buffer = buffer_of("place", owner);
  const size_t bytes = owner.bytes();
  require<InvalidArgument>(view.empty() || (view.view_offset <= bytes && view.span_bytes() <= bytes - view.view_offset),
                           "[place {}] the view at offset {} has {} bytes and exceeds the {} bytes of {}", view.name,
                           view.view_offset, view.span_bytes(), bytes, owner.name);
  buffer.attach(view, owner.data + view.view_offset);
}

void Buffer::alias(Tensor& tensor, const Tensor& placed) {
  check_holds("alias", *this, placed);
  require<InvalidArgument>(tensor.buffer == nullptr, "[alias {}] the tensor is placed already", tensor.name);
  require<InvalidArgument>(
      tensor.dtype == placed.dtype && same_shape(tensor, placed) && tensor.strides == placed.strides,
      "[alias {}] {} and {} differ in dtype, shape or strides", tensor.name, describe(tensor), describe(placed));
  placed.buffer->do_alias(tensor, placed);
  placed.buffer->register_tensor(tensor, true);
}

void Buffer::unplace(Tensor& tensor) {
  check_holds("unplace", *this, tensor);
  Buffer& buffer = *tensor.buffer;
  buffer.do_unplace(tensor);
  const bool is_name = tensor.is_view() || buffer.usage() == Usage::kCompute || tensor.placement.is_alias();
  if (!is_name) LifePool::instance().advance(buffer.life_);  // prevents later runs of plans that read the tensor
  tensor.placement.leave();
  tensor.buffer = nullptr;
  tensor.data = nullptr;
}

void Buffer::do_alias(Tensor& tensor, const Tensor& placed) {
  tensor.buffer = placed.buffer;
  tensor.data = placed.data;
}

void Buffer::set(Tensor& tensor, const void* data, size_t offset, size_t size) {
  check_holds("set", *this, tensor);
  check_range("set", tensor, offset, size);
  if (size != 0) do_set(tensor, data, offset, size);
}

void Buffer::get(const Tensor& tensor, void* data, size_t offset, size_t size) {
  check_holds("get", *this, tensor);
  check_range("get", tensor, offset, size);
  if (size != 0) do_get(tensor, data, offset, size);
}

void Buffer::memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) {
  check_holds("memset", *this, tensor);
  check_range("memset", tensor, offset, size);
  if (size != 0) do_memset(tensor, value, offset, size);
}

void Buffer::fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) {
  check_holds("fill", *this, tensor);
  check_range("fill", tensor, offset, size);
  if (size != 0) do_fill(tensor, offset, size, read);
}

void Buffer::do_fill(Tensor& tensor, size_t offset, size_t size, const ByteReader& read) {
  constexpr size_t kMost = size_t{8} << 20;   // most reads of a loader are smaller than this limit; slices of wide
                                              // experts can be larger
  thread_local std::vector<std::byte> stage;  // a thread usually fills many pieces and reuses this buffer
  stage.resize(std::max(stage.size(), std::min(size, kMost)));
  for (size_t done = 0; done < size;) {
    const size_t part = std::min(size - done, stage.size());
    read(offset + done, {stage.data(), part});
    do_set(tensor, stage.data(), offset + done, part);
    done += part;
  }
}

void Buffer::set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) {
  check_holds("set_2d", *this, tensor);
  check_rows("set_2d", tensor, host_stride, rows);
  if (rows.rows != 0 && rows.row_bytes != 0) do_set_2d(tensor, data, host_stride, rows);
}

void Buffer::get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) {
  check_holds("get_2d", *this, tensor);
  check_rows("get_2d", tensor, host_stride, rows);
  if (rows.rows != 0 && rows.row_bytes != 0) do_get_2d(tensor, data, host_stride, rows);
}

void Buffer::do_set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) {
  const auto* bytes = static_cast<const std::byte*>(data);
  for (size_t row = 0; row < rows.rows; ++row) {
    do_set(tensor, bytes + row * host_stride, rows.offset + row * rows.stride, rows.row_bytes);
  }
}

void Buffer::do_get_2d(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) {
  auto* bytes = static_cast<std::byte*>(data);
  for (size_t row = 0; row < rows.rows; ++row) {
    do_get(tensor, bytes + row * host_stride, rows.offset + row * rows.stride, rows.row_bytes);
  }
}

std::unique_ptr<Buffer> make_multi_buffer(std::vector<std::unique_ptr<Buffer>> parts) {
  require<InvalidArgument>(!parts.empty(), "a multi-buffer needs at least one part");
  return std::make_unique<MultiBuffer>(std::move(parts));
}

void tensor_set(Tensor& tensor, const void* data, size_t offset, size_t size) {
  buffer_of("set", tensor).set(tensor, data, offset, size);
}

void tensor_get(const Tensor& tensor, void* data, size_t offset, size_t size) {
  buffer_of("get", tensor).get(tensor, data, offset, size);
}

void check_access(std::string_view what, const Tensor& tensor, size_t host_stride, const Rows& rows) {
  buffer_of(what, tensor);
  check_rows(what, tensor, host_stride, rows);
}

void check_held(const HeldBuffer& held, std::string_view what) {
  if (held) return;
  fail<InvalidArgument>(
      "[{}] the tensor's buffer was freed or reset while this call was queued; synchronize the backend first", what);
}

void check_copy(const Tensor& src, const Tensor& dst) {
  buffer_of("copy", src);
  buffer_of("copy", dst);
  if (src.dtype == dst.dtype && same_shape(src, dst)) return;
  fail<InvalidArgument>("[copy] {} and {} differ in dtype or shape", describe(src), describe(dst));
}

void tensor_copy(const Tensor& src, Tensor& dst) {
  check_copy(src, dst);
  Buffer& from = buffer_of("copy", src);
  Buffer& to = buffer_of("copy", dst);
  if (&src == &dst || src.empty()) return;
  if (src.is_contiguous() && dst.is_contiguous() && (to.copy_tensor(src, dst) || from.copy_to(src, dst))) return;
  constexpr size_t kStage = size_t{16} << 20;  // limits the host memory that a copy of a large tensor needs
  const size_t bytes = src.bytes();
  std::vector<std::byte> stage(std::min(bytes, kStage));
  for (size_t done = 0; done < bytes; done += stage.size()) {
    const size_t size = std::min(stage.size(), bytes - done);
    from.get(src, stage.data(), done, size);
    to.set(dst, stage.data(), done, size);
  }
}

}  // namespace shoal
