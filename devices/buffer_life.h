// Detects whether a buffer still exists and still contains its placed tensors. Plans and queued work may outlive their
// buffers. So plans and queued work use a BufferRef, which never accesses the buffer. Work that uses a buffer's memory
// holds the buffer. The destruction or reset of a buffer waits until all holds are released. Thread-safe. No function
// in this header locks, searches or allocates.
#pragma once

#include <atomic>
#include <cstdint>

namespace shoal {

/// The state that a BufferRef refers to. A state comes from a pool and is never freed, so a reference is always valid.
/// New buffers reuse the states of destroyed buffers. Every run writes to the states of its buffers. So each state has
/// its own cache line.
struct alignas(64) BufferLife {
  std::atomic<uint64_t> generation{0};  ///< unique for each buffer, and changed by each reset
  std::atomic<int> holds{0};
};

/// A copyable reference to one generation of a buffer.
class BufferRef {
 public:
  explicit BufferRef(BufferLife& life) : life_(&life), generation_(life.generation) {}
  bool operator==(const BufferRef&) const = default;
  bool is_there() const { return life_->generation.load(std::memory_order_acquire) == generation_; }
  /// Holds the buffer and returns true. If the buffer was freed or reset, returns false and does not hold the buffer.
  bool hold() const {
    life_->holds.fetch_add(1);
    if (life_->generation.load() == generation_) return true;
    release();
    return false;
  }
  void release() const { life_->holds.fetch_sub(1); }

 private:
  BufferLife* life_;
  uint64_t generation_;
};

/// Holds a buffer if it still exists.
class HeldBuffer {
 public:
  explicit HeldBuffer(const BufferRef& buffer) : buffer_(buffer), held_(buffer.hold()) {}
  ~HeldBuffer() {
    if (held_) buffer_.release();
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  explicit operator bool() const { return held_; }

 private:
  BufferRef buffer_;
  bool held_;
};

}  // namespace shoal
