#include "devices/graph_plan.h"

#include <algorithm>

#include "base/error.h"
#include "devices/backend.h"

namespace shoal {

GraphPlan::GraphPlan(Backend& backend) : backend_(backend), life_(backend.life()) {}

void GraphPlan::note_memory(const GraphRange& range) {
  reads_.clear();
  std::vector<const Buffer*> known;
  const auto note = [&](const Tensor& tensor) {
    const bool is_made_here = !tensor.is_leaf() && tensor.id >= range.begin && tensor.id < range.end;
    if (is_made_here || tensor.buffer == nullptr) return;
    if (std::find(known.begin(), known.end(), tensor.buffer) != known.end()) return;
    known.push_back(tensor.buffer);
    reads_.push_back({tensor.buffer->ref(), tensor.name});
  };
  for (const Tensor* node : nodes_of(range)) {
    for (const Tensor* source : node->src) {
      if (source != nullptr) note(*source->storage());
    }
  }
}

void GraphPlan::fail_without(const Memory& memory) const {
  fail<InvalidArgument>(
      "[{}] after the plan was made, the buffer of {} was freed or reset, or a tensor in this buffer was unplaced; "
      "place the tensor again and make a new plan",
      has_backend() ? backend_.name() : "plan", memory.tensor);
}

HeldMemory::HeldMemory(const GraphPlan& plan) : plan_(plan) {
  for (size_t i = 0; i < plan.reads_.size(); ++i) {
    if (plan.reads_[i].buffer.hold()) continue;
    release(i);
    plan.fail_without(plan.reads_[i]);
  }
}

void HeldMemory::release(size_t count) const {
  for (size_t i = 0; i < count; ++i) plan_.reads_[i].buffer.release();
}

}  // namespace shoal
