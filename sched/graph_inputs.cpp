#include "sched/graph_inputs.h"

namespace shoal::sched {

GraphInputs::GraphInputs(Graph& graph, BufferType& type) : uid_(graph.uid()), life_(graph.life()) {
  for (Tensor* input : graph.inputs()) {
    if (input->buffer == nullptr) placed_.push_back(input);
  }
  memory_ = allocate_tensors(placed_, type, Usage::kCompute);
}

GraphInputs::~GraphInputs() {
  if (graph_is_gone()) return;
  for (Tensor* input : placed_) input->buffer = nullptr, input->data = nullptr;
}

}  // namespace shoal::sched
