// The caller's inputs of a graph: host memory for them that lasts as long as the graph, whatever becomes of its plans.
#pragma once

#include <memory>
#include <vector>

#include "devices/allocate.h"

namespace shoal::sched {

class GraphInputs {
 public:
  /// Places the inputs that have no memory yet.
  GraphInputs(Graph& graph, BufferType& type);
  ~GraphInputs();
  GraphInputs(const GraphInputs&) = delete;
  GraphInputs& operator=(const GraphInputs&) = delete;

  bool graph_is_gone() const { return life_.expired(); }
  uint64_t uid() const { return uid_; }
  size_t bytes() const { return memory_ != nullptr ? memory_->size() : 0; }

 private:
  uint64_t uid_;
  std::weak_ptr<const void> life_;
  std::vector<Tensor*> placed_;
  std::unique_ptr<Buffer> memory_;
};

}  // namespace shoal::sched
