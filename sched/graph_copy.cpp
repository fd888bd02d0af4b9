#include "sched/graph_copy.h"

#include <algorithm>

#include "base/error.h"
#include "devices/allocate.h"

namespace shoal::sched {

void LeafCopies::add(const Graph& graph) {
  const size_t before = originals_.size();
  const size_t buffers = memory_.size();
  try {
    std::vector<Tensor*> weights, caches;
    for (const Tensor* leaf : graph.leaves()) {
      if (!leaf->is_persistent() || copies_.contains(leaf)) continue;
      require<InvalidArgument>(leaf->buffer != nullptr,
                               "{} has no memory, so there is nothing to copy; place it on a device first",
                               describe(*leaf));
      (leaf->role == Role::kWeight ? weights : caches).push_back(declare(*leaf));
    }
    const auto place = [&](std::span<Tensor* const> tensors, Usage usage) {
      if (!tensors.empty()) memory_.push_back(allocate_tensors(tensors, device_.buffer_type(), usage));
    };
    place(weights, Usage::kWeights);
    place(caches, Usage::kAny);
    for (size_t i = before; i < originals_.size(); ++i) tensor_copy(*originals_[i], *copies_.at(originals_[i]));
  } catch (...) {
    memory_.resize(buffers);
    for (size_t i = before; i < originals_.size(); ++i) copies_.erase(originals_[i]);
    originals_.resize(before);
    contexts_.emplace_front();  // a new context, because the old context still has the names of the removed copies
    throw;
  }
}

// The copy has the same name as its original, because layouts depend on the name.
Tensor* LeafCopies::declare(const Tensor& original) {
  auto free = std::find_if(contexts_.begin(), contexts_.end(),
                           [&](const TensorContext& context) { return context.find(original.name) == nullptr; });
  if (free == contexts_.end()) free = contexts_.emplace(contexts_.end());
  Tensor* copy = free->add(original.name, original.dtype, original.shape, original.role);
  originals_.push_back(&original);
  copies_.emplace(&original, copy);
  return copy;
}

Tensor* LeafCopies::find(const Tensor& original) const {
  const auto found = copies_.find(&original);
  return found == copies_.end() ? nullptr : found->second;
}

GraphCopy::GraphCopy(const Graph& graph, LeafCopies& leaves) : leaves_(leaves), graph_(graph.name()) {
  leaves_.add(graph);
  for (const Tensor* input : graph.inputs()) {
    copies_[input] = graph_.placeholder(*input, input->shape);
    inputs_.push_back(input);
  }
  for (const Tensor* node : graph.nodes()) {
    std::vector<Tensor*> sources;
    for (const Tensor* source : node->src) sources.push_back(source == nullptr ? nullptr : find(*source));
    Tensor* copy = graph_.add_node(node->op, node->params, std::move(sources), node->name);
    if (node->is_output) graph_.output(copy);
    copies_[node] = copy;
  }
}

Tensor* GraphCopy::find(const Tensor& original) const {
  const auto found = copies_.find(&original);
  return found != copies_.end() ? found->second : leaves_.find(original);
}

void GraphCopy::copy_inputs() {
  for (const Tensor* input : inputs_) tensor_copy(*input, *copies_.at(input));
}

}  // namespace shoal::sched
