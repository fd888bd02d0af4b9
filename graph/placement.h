// The tensors placed in one buffer, as an intrusive list. When a buffer is destroyed, it unplaces the tensors in its
// list. When a tensor is destroyed, it is removed from the list. Either the buffer or a tensor may be destroyed first.
// All functions are thread-safe. One mutex serves all lists, because tensors are placed rarely.
#pragma once

#include <atomic>

namespace shoal {

class Buffer;  // devices/buffer.h; opaque here
struct Tensor;

/// A tensor's link in a list of placed tensors. A copy of a tensor is not in a list.
class PlacementLink {
 public:
  PlacementLink() = default;
  PlacementLink(const PlacementLink&) noexcept {}
  PlacementLink& operator=(const PlacementLink&) noexcept { return *this; }
  ~PlacementLink() { leave(); }
  void leave() noexcept {
    if (next_.load(std::memory_order_acquire) != nullptr) unlink();
  }
  /// Whether the tensor is an alias of a tensor in the same buffer (Buffer::alias). False for a tensor that is not in a
  /// list of placed tensors.
  bool is_alias() const { return is_alias_; }

 private:
  friend class PlacedTensors;
  void unlink() noexcept;

  /// If this pointer is nullptr, the tensor is not in a list, and no list refers to this tensor.
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
  /// Adds the tensor to this list and removes it from any other list. `is_alias`: see PlacementLink::is_alias().
  void add(Tensor& tensor, bool is_alias);
  /// Empties the list and clears the placement of tensors in `buffer`. Call this function before the buffer is
  /// destroyed.
  void unplace_all(const Buffer* buffer) noexcept;

 private:
  PlacementLink end_;  ///< sentinel: follows the last link and precedes the first link
};

}  // namespace shoal
