#include "tests/support/poison.h"

#include <set>

#include "meta/meta.h"

namespace shoal::test {
namespace {

using Buffers = std::set<Buffer*>;

bool is_meta(const Device& device) {
  return dynamic_cast<const meta::MetaDevice*>(&device) != nullptr;
}

/// Adds the buffers of the graph's tensors to `buffers`. If `of_meta` is set, adds only buffers of meta devices.
/// Otherwise, adds only buffers of other devices.
void collect(const Graph& graph, bool of_meta, Buffers& buffers) {
  const auto add = [&](const Tensor* tensor) {
    if (tensor->buffer != nullptr && is_meta(tensor->buffer->type().device()) == of_meta)
      buffers.insert(tensor->buffer);
  };
  for (const Tensor* leaf : graph.leaves()) add(leaf);
  for (const Tensor* input : graph.inputs()) add(input);
  for (const Tensor* node : graph.nodes()) add(node);
}

}  // namespace

void poison(const Graph& graph, const GraphPlan& plan) {
  Buffers buffers, meta_buffers;
  if (is_meta(plan.backend().device())) {
    collect(graph, true, meta_buffers);
    // The ranks' own buffers are filled, because filling a meta buffer leaves zeros in the addends of partial sums.
    for (const meta::RankPlan& rank : meta::plan_of(plan).ranks) collect(*rank.graph, false, buffers);
  } else {
    collect(graph, false, buffers);
  }
  for (Buffer* buffer : meta_buffers) buffer->clear(0xff);
  for (Buffer* buffer : buffers) buffer->clear(0xff);
}

}  // namespace shoal::test
