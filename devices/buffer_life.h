// Is a buffer still there, and what lay in it? Plans and queued work may outlive the buffers that they are about:
// they ask a BufferRef, which touches no buffer. Who works in the memory of one holds it meanwhile; a buffer that is
// to go, or to be reset, waits for that. Thread-safe; none of it locks, looks up or allocates.
#pragma once

#include <atomic>
#include <cstdint>

namespace shoal {

/// What a BufferRef looks at: of a pool, never freed, so that it may always look. Buffers have it in turn. Every run
/// writes to those of its buffers: no two share a cache line.
struct alignas(64) BufferLife {
  std::atomic<uint64_t> generation{0};  ///< a number of its own for each buffer, and another one after each reset
  std::atomic<int> holds{0};
};

/// A buffer as it was when this was made. Copies are as good.
class BufferRef {
 public:
  explicit BufferRef(BufferLife& life) : life_(&life), generation_(life.generation) {}
  bool operator==(const BufferRef&) const = default;
  bool is_there() const { return life_->generation.load(std::memory_order_acquire) == generation_; }
  /// False: it has gone, and nothing is held.
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

/// Holds a buffer, if it is there.
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
