#include "graph/placement.h"

#include <mutex>

#include "graph/tensor.h"

namespace shoal {
namespace {

constinit std::mutex lists;

}  // namespace

void PlacementLink::unlink() noexcept {
  const std::lock_guard lock(lists);
  PlacementLink* next = next_.load(std::memory_order_relaxed);
  if (next == nullptr) return;  // the buffer was destroyed in the meantime
  previous_->next_.store(next, std::memory_order_relaxed);
  next->previous_ = previous_;
  is_alias_ = false;
  next_.store(nullptr, std::memory_order_relaxed);
}

PlacedTensors::PlacedTensors() {
  end_.previous_ = &end_;
  end_.next_ = &end_;
}

void PlacedTensors::add(Tensor& tensor, bool is_alias) {
  PlacementLink& link = tensor.placement;
  link.leave();
  const std::lock_guard lock(lists);
  link.tensor_ = &tensor;
  link.is_alias_ = is_alias;
  link.previous_ = end_.previous_;
  link.next_.store(&end_, std::memory_order_relaxed);
  end_.previous_->next_.store(&link, std::memory_order_relaxed);
  end_.previous_ = &link;
}

void PlacedTensors::unplace_all(const Buffer* buffer) noexcept {
  const std::lock_guard lock(lists);
  for (PlacementLink* link = end_.next_.load(std::memory_order_relaxed); link != &end_;) {
    PlacementLink* next = link->next_.load(std::memory_order_relaxed);
    Tensor& tensor = *link->tensor_;
    if (tensor.buffer == buffer) tensor.buffer = nullptr, tensor.data = nullptr;
    link->is_alias_ = false;
    link->next_.store(nullptr, std::memory_order_release);  // last access: afterwards the tensor may be destroyed
    link = next;
  }
  end_.previous_ = &end_;
  end_.next_.store(&end_, std::memory_order_relaxed);
}

}  // namespace shoal
