#include "tests/support/case_model.h"

#include "graph/text.h"
#include "tests/support/reference.h"

namespace shoal::test {

CaseModel::CaseModel(const RandomCase& one) : one_(one) {
  parse_graph(one.graph, graph_, weights_);
  for (const Tensor* leaf : weights_.tensors()) by_name_[leaf->name] = leaf;
  for (const Tensor* input : graph_.inputs()) by_name_[input->name] = input;
  for (const auto& [name, leaf] : by_name_) leaves_[leaf] = leaf_values(one, *leaf);
}

void CaseModel::evaluate(uint64_t run) {
  for (const Tensor* input : graph_.inputs()) leaves_[input] = leaf_values(one_, *input, run);
  seen_.clear();
  after_ =
      reference_eval(graph_, leaves_, [&](const Tensor& node, const Values& values) { seen_[node.name] = values; });
  results_.clear();
  const auto add = [&](const Tensor& tensor) {
    results_[tensor.name] = {after_.at(&tensor), tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64};
  };
  for (const Tensor* node : graph_.nodes()) {
    if (node->is_output) add(*node);
  }
  for (const Tensor* leaf : weights_.tensors()) {
    if (leaf->role == Role::kCache) add(*leaf);
  }
}

void CaseModel::done() {
  for (const Tensor* leaf : weights_.tensors()) {
    if (leaf->role == Role::kCache) leaves_[leaf] = after_.at(leaf);
  }
}

}  // namespace shoal::test
