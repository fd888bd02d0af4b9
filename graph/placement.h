// The tensors that lie in one buffer, as a list through the tensors: a buffer that goes unplaces those that are still
// there, and a tensor that goes leaves the list, so that either may be the first. Thread-safe: tensors are placed
// rarely, so that one mutex serves all lists.
#pragma once

#include <atomic>

namespace shoal {

class Buffer;  // devices/buffer.h; opaque here
struct Tensor;

/// A tensor's place in such a list. The copy of a tensor is in none.
class PlacementLink {
 public:
  PlacementLink() = default;
  PlacementLink(const PlacementLink&) noexcept {}
  PlacementLink& operator=(const PlacementLink&) noexcept { return *this; }
  ~PlacementLink() { leave(); }
  void leave() noexcept {
    if (next_.load(std::memory_order_acquire) != nullptr) unlink();
  }
  /// The tensor is another name of one that lies in the same buffer (Buffer::alias). False for a tensor in no list.
  bool is_alias() const { return is_alias_; }

 private:
  friend class PlacedTensors;
  void unlink() noexcept;

  /// nullptr: in no list, and no list is at this tensor.
  std::atomic<PlacementLink*> next_{nullptr};
  PlacementLink* previous_ = nullptr;
  Tensor* tensor_ = nullptr;
  bool is_alias_ = false;
};

class PlacedTensors {
 public:
  PlacedTensors();
  PlacedTensors(const PlacedTensors&) = delete;
  PlacedTensors& operator=(const PlacedTensors&) = delete;
  /// The tensor is here from now on and in no other list. `is_alias`: see PlacementLink::is_alias().
  void add(Tensor& tensor, bool is_alias);
  /// Empties the list; tensors that lie in `buffer` have no memory any more. To be called before this goes.
  void unplace_all(const Buffer* buffer) noexcept;

 private:
  PlacementLink end_;  ///< before the first and behind the last
};

}  // namespace shoal
