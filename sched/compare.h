// Compares two backends on one graph, node by node. Both backends run the graph in pieces; the second backend runs a
// copy (graph_copy.h). After each piece the last value is read from both backends and passed to a callback. Then these
// values are discarded, so the comparison needs little more memory than running the graph.
//
//   LeafCopies leaves(second->device());
//   Comparison comparison(*first, graph, *second, leaves);
//   tensor_set(*tokens, ...);                                       // inputs have memory now
//   comparison.run([](const ComparedNode& node) { ...; return true; });
//
// Not thread-safe. The backends must not be used for other work during the comparison.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "devices/backend.h"
#include "sched/graph_copy.h"

namespace shoal::sched {

/// Returns true for a node that is to be compared.
using NodeFilter = std::function<bool(const Tensor& node)>;
/// True for nodes that compute something; false for views.
bool computes(const Tensor& node);
/// Returns a filter that selects only this node, which may be a view.
NodeFilter only(const Tensor& node);

/// Plan options with which a run may pause after each wanted node, so that the node can be read.
PlanOptions comparison_options(const Graph& graph, const NodeFilter& wanted);

struct ComparedNode {
  const Tensor& node;  ///< of the original graph
  const Tensor& copy;
  /// The node's value on both backends, without gaps. A partial sum of a meta device is read as the complete sum. Valid
  /// during the callback.
  std::span<const std::byte> first, second;
};
/// Returns false to stop the comparison.
using CompareCallback = std::function<bool(const ComparedNode& node)>;

class Comparison {
 public:
  /// Makes both plans. Throws like LeafCopies::add and create_plan.
  Comparison(Backend& first, Graph& graph, Backend& second, LeafCopies& leaves, NodeFilter wanted = computes);
  ~Comparison();

  /// Runs the graph on both backends with the inputs of the first graph. Caches are written on both. Returns false if
  /// the callback stopped the run. Throws failures of both backends.
  bool run(const CompareCallback& callback);

  GraphCopy& copy() { return copy_; }
  const GraphPlan& first_plan() const { return *first_plan_; }
  const GraphPlan& second_plan() const { return *second_plan_; }

 private:
  Backend &first_, &second_;
  std::vector<std::byte> first_value_, second_value_;  ///< members, because a stream may still write after an error
  GraphCopy copy_;
  std::vector<const Tensor*> nodes_;  ///< last node of each segment; the last segment may have none
  std::unique_ptr<GraphPlan> first_plan_, second_plan_;
};

}  // namespace shoal::sched
