#include "tests/support/poison.h"

#include <set>

#include "meta/device/meta_device.h"

namespace shoal::test {
namespace {

using Buffers = std::set<Buffer*>;

void collect(const Graph& graph, Buffers& buffers) {
  const auto add = [&](const Tensor* tensor) {
    if (tensor->buffer == nullptr) return;
    if (dynamic_cast<meta::MetaDevice*>(&tensor->buffer->type().device()) == nullptr) buffers.insert(tensor->buffer);
  };
  for (const Tensor* leaf : graph.leaves()) add(leaf);
  for (const Tensor* input : graph.inputs()) add(input);
  for (const Tensor* node : graph.nodes()) add(node);
}

}  // namespace

void poison(const Graph& graph, const GraphPlan& plan) {
  Buffers buffers;
  if (dynamic_cast<meta::MetaDevice*>(&plan.backend().device()) == nullptr) {
    collect(graph, buffers);
  } else {
    // The members' own buffers: clearing a meta buffer leaves zeros in the addends of partial sums.
    for (const meta::RankPlan& rank : meta::plan_of(plan).ranks) collect(*rank.graph, buffers);
  }
  for (Buffer* buffer : buffers) buffer->clear(0xff);
}

}  // namespace shoal::test
