// WorkQueue: a first-in, first-out queue without locks, for one pushing and one popping thread. Items are stored in
// segments of fixed size. Emptied segments return to the pushing side, so a queue that has reached its maximum length
// never allocates again. The length is unbounded: if a full queue blocked, two backends that wait for each other could
// deadlock. The queue does not wait for items; the worker counts them and waits.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <type_traits>

namespace shoal::cpu {

template <class Item, size_t kSegmentItems = 256>
class WorkQueue {
  static_assert(std::is_trivially_copyable_v<Item>);

 public:
  /// The queue can hold `segments` * kSegmentItems items before it allocates.
  explicit WorkQueue(int segments = 4) : push_segment_(new Segment), pop_segment_(push_segment_) {
    for (int i = 1; i < segments; ++i) recycle(new Segment);
  }
  ~WorkQueue() {
    free_all(pop_segment_);
    free_all(recycled_.load());
    free_all(spare_);
  }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// The caller publishes the item by a release store to its own count of items.
  void push(const Item& item) {
    if (push_index_ == kSegmentItems) {
      Segment* segment = take_segment();
      push_segment_->next = segment;
      push_segment_ = segment;
      push_index_ = 0;
    }
    push_segment_->items[push_index_++] = item;
  }

  /// The caller must know, by an acquire load, that an item has been pushed.
  Item pop() {
    if (pop_index_ == kSegmentItems) {
      Segment* empty = pop_segment_;
      pop_segment_ = empty->next;
      pop_index_ = 0;
      recycle(empty);
    }
    return pop_segment_->items[pop_index_++];
  }

 private:
  struct Segment {
    std::array<Item, kSegmentItems> items;
    Segment* next = nullptr;
  };

  static void free_all(Segment* segment) {
    while (segment != nullptr) {
      Segment* next = segment->next;
      delete segment;
      segment = next;
    }
  }

  void recycle(Segment* segment) {
    segment->next = recycled_.load(std::memory_order_relaxed);
    while (!recycled_.compare_exchange_weak(segment->next, segment, std::memory_order_release)) {
    }
  }

  /// Takes all recycled segments at once, so that only one thread pops from a list.
  Segment* take_segment() {
    if (spare_ == nullptr) spare_ = recycled_.exchange(nullptr, std::memory_order_acquire);
    if (spare_ == nullptr) return new Segment;
    Segment* segment = spare_;
    spare_ = segment->next;
    segment->next = nullptr;
    return segment;
  }

  // Used only by the pushing thread.
  Segment* push_segment_;
  size_t push_index_ = 0;
  Segment* spare_ = nullptr;
  // Used only by the popping thread; on its own cache line.
  alignas(64) Segment* pop_segment_;
  size_t pop_index_ = 0;
  alignas(64) std::atomic<Segment*> recycled_{nullptr};
};

}  // namespace shoal::cpu
