#include "sched/compare.h"

#include "base/error.h"
#include "graph/op.h"
#include "sched/scheduled_graph.h"

namespace shoal::sched {
namespace {

std::vector<const Tensor*> wanted_nodes(const Graph& graph, const NodeFilter& wanted) {
  std::vector<const Tensor*> nodes;
  for (const Tensor* node : graph.nodes()) {
    if (wanted(*node)) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

bool computes(const Tensor& node) {
  return !is_view(node.op);
}

NodeFilter only(const Tensor& node) {
  return [&node](const Tensor& other) { return &other == &node; };
}

PlanOptions comparison_options(const Graph& graph, const NodeFilter& wanted) {
  PlanOptions options;
  options.shown = wanted_nodes(graph, wanted);
  const int end = static_cast<int>(graph.nodes().size());
  for (const Tensor* node : options.shown) {
    if (node->id + 1 < end) options.cuts.push_back(node->id + 1);
  }
  return options;
}

Comparison::Comparison(Backend& first, Graph& graph, Backend& second, LeafCopies& leaves, NodeFilter wanted)
    : first_(first), second_(second), copy_(graph, leaves), nodes_(wanted_nodes(graph, wanted)) {
  require<InvalidArgument>(&leaves.device() == &second.device(),
                           "the leaves were copied to {}; copy them to the device of the second backend, {}",
                           leaves.device().name(), second.name());
  PlanOptions options = comparison_options(graph, wanted);
  first_plan_ = first.create_plan(graph, options);
  for (const Tensor*& node : options.shown) node = copy_.find(*node);
  second_plan_ = second.create_plan(copy_.graph(), options);
}

Comparison::~Comparison() = default;

bool Comparison::run(const CompareCallback& callback) {
  copy_.copy_inputs();
  std::vector<std::byte>&first = first_value_, &second = second_value_;
  const int segments = first_plan_->segments();
  for (int segment = 0; segment < segments; ++segment) {
    first_.compute_async(*first_plan_, segment, segment + 1);
    second_.compute_async(*second_plan_, segment, segment + 1);
    const bool shows = segment < static_cast<int>(nodes_.size());
    if (shows) {
      const Tensor& node = *nodes_[static_cast<size_t>(segment)];
      first.resize(node.bytes());
      second.resize(node.bytes());
      first_.get_async(node, first.data(), 0, first.size());
      second_.get_async(*copy_.find(node), second.data(), 0, second.size());
    }
    Backend* const both[] = {&first_, &second_};
    synchronize_all(both);
    if (!shows) break;
    const Tensor& node = *nodes_[static_cast<size_t>(segment)];
    if (!callback({node, *copy_.find(node), first, second})) return false;
  }
  return true;
}

}  // namespace shoal::sched
