#include "tests/support/placed_weights.h"

#include <map>

#include "devices/allocate.h"
#include "graph/text.h"

namespace shoal::test {

PlacedWeights::PlacedWeights(const RandomCase& one) : one_(one) {
  Graph graph;
  parse_graph(one.graph, graph, weights_);
}

void PlacedWeights::place(const std::function<Device&(const Tensor&)>& home) {
  memory_.clear();  // destroying the buffers also resets the tensors' buffer pointers
  std::map<Device*, std::vector<Tensor*>> homes;
  for (Tensor* tensor : weights_.tensors()) homes[&home(*tensor)].push_back(tensor);
  for (const auto& [device, tensors] : homes) {
    memory_.push_back(allocate_tensors(tensors, device->buffer_type(), Usage::kWeights));
  }
}

void PlacedWeights::write(const CaseModel& model) {
  for (Tensor* tensor : weights_.tensors()) write_leaf(one_, *tensor, model.leaf(tensor->name));
}

}  // namespace shoal::test
