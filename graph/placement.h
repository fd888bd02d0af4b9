// The tensors placed in one buffer, as an intrusive list. A buffer that is destroyed unplaces the tensors in its list;
// a tensor that is destroyed leaves the list. Either may be destroyed first. Thread-safe: one mutex serves all lists,
// since tensors are placed rarely.
#pragma once

#include <atomic>

namespace shoal {

class Buffer;  // devices/buffer.h; opaque here
struct Tensor;

/// A tensor's link in a list of placed tensors. A copy of a tensor is in no list.
class PlacementLink {
 public:
  PlacementLink() = default;
  PlacementLink(const PlacementLink&) noexcept {}
  PlacementLink& operator=(const PlacementLink&) noexcept { return *this; }
  ~PlacementLink() { leave(); }
  void leave() noexcept {
    if (next_.load(std::memory_order_acquire) != nullptr) unlink();
  }
  /// Whether the tensor is an alias of a tensor in the same buffer (Buffer::alias). False for a tensor in no list.
  bool is_alias() const { return is_alias_; }

 private:
  friend class PlacedTensors;
  void unlink() noexcept;

  /// nullptr if the tensor is in no list; then no list refers to this tensor.
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
  /// Empties the list and clears the placement of tensors in `buffer`. Call it before the buffer is destroyed.
  void unplace_all(const Buffer* buffer) noexcept;

 private:
  PlacementLink end_;  ///< sentinel: before the first and after the last link
};

}  // namespace shoal
