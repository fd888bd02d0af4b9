// WorkQueue: first in, first out, one thread pushes and one pops, without locks. Items lie in segments of fixed
// size; emptied segments go back to the pushing side, so that a queue that has once been as long as it gets
// never allocates again. It does not bound its length: a full queue that blocked could deadlock two backends
// that wait for each other. Waiting for items is up to the worker, which counts them.
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
  /// Room for `segments` * kSegmentItems items before the first allocation.
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

  /// Publishing the item (release) is up to the caller's own count of items.
  void push(const Item& item) {
    if (push_index_ == kSegmentItems) {
      Segment* segment = take_segment();
      push_segment_->next = segment;
      push_segment_ = segment;
      push_index_ = 0;
    }
    push_segment_->items[push_index_++] = item;
  }

  /// The caller knows (acquire) that an item has been pushed.
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

  /// The pushing side takes all recycled segments at once, so that no list is popped by two threads.
  Segment* take_segment() {
    if (spare_ == nullptr) spare_ = recycled_.exchange(nullptr, std::memory_order_acquire);
    if (spare_ == nullptr) return new Segment;
    Segment* segment = spare_;
    spare_ = segment->next;
    segment->next = nullptr;
    return segment;
  }

  // Pushing thread only.
  Segment* push_segment_;
  size_t push_index_ = 0;
  Segment* spare_ = nullptr;
  // Popping thread only, on a cache line of its own.
  alignas(64) Segment* pop_segment_;
  size_t pop_index_ = 0;
  alignas(64) std::atomic<Segment*> recycled_{nullptr};
};

}  // namespace shoal::cpu
