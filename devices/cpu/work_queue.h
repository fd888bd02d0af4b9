// WorkQueue is a lock-free first-in, first-out queue for one pushing thread and one popping thread. Items are stored in
// segments of fixed size. The popping thread returns empty segments to the pushing thread. So a queue that has reached
// its maximum length never allocates again. The length is unbounded. If a full queue blocked the pushing thread, two
// backends that wait for each other could deadlock. The queue never waits for items. The worker counts the items and
// waits for them.
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

  /// After the push, the caller publishes the item with a release store to its own count of items.
  void push(const Item& item) {
    if (push_index_ == kSegmentItems) {
      Segment* segment = take_segment();
      push_segment_->next = segment;
      push_segment_ = segment;
      push_index_ = 0;
    }
    push_segment_->items[push_index_++] = item;
  }

  /// Before the call, an acquire load of the count of items must show the caller that an item has been pushed.
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

  /// Takes a segment from the pushing thread's list of spare segments. If this list is empty, first moves all recycled
  /// segments to it. So only one thread takes segments from a list.
  Segment* take_segment() {
    if (spare_ == nullptr) spare_ = recycled_.exchange(nullptr, std::memory_order_acquire);
    if (spare_ == nullptr) return new Segment;
    Segment* segment = spare_;
    spare_ = segment->next;
    segment->next = nullptr;
    return segment;
  }

  // Only the pushing thread uses these members.
  Segment* push_segment_;
  size_t push_index_ = 0;
  Segment* spare_ = nullptr;
  // Only the popping thread uses these members, which are on a separate cache line.
  alignas(64) Segment* pop_segment_;
  size_t pop_index_ = 0;
  alignas(64) std::atomic<Segment*> recycled_{nullptr};
};

}  // namespace shoal::cpu
