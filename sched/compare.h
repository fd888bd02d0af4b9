// Compares two backends on one graph, node by node. Both backends run the graph one segment at a time. The second
// backend runs a copy of the graph (graph_copy.h). After each segment, the value of the last node is read from both
// backends and passed to a callback. Then these values are discarded. So the comparison needs little more memory than a
// run of the graph.
//
//   LeafCopies leaves(second->device());
//   Comparison comparison(*first, graph, *second, leaves);
//   tensor_set(*tokens, ...);                                       // inputs have memory now
//   comparison.run([](const ComparedNode& node) { ...; return true; });
//
// Not thread-safe. The backends must not run other work during the comparison.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "devices/backend.h"
#include "sched/graph_copy.h"

namespace shoal::sched {

/// Returns true for a node that the comparison must compare.
using NodeFilter = std::function<bool(const Tensor& node)>;
/// Whether the node computes a value. False for views.
bool computes(const Tensor& node);
/// Returns a filter that accepts only this node. The node may be a view.
NodeFilter only(const Tensor& node);

/// Plan options with a cut after each node that `wanted` accepts, so that the value of the node can be read.
PlanOptions comparison_options(const Graph& graph, const NodeFilter& wanted);

struct ComparedNode {
  const Tensor& node;  ///< node of the original graph
  const Tensor& copy;
  /// The node's value on both backends, as contiguous bytes. A partial sum of a meta device is read as the complete
  /// sum. The bytes are valid only during the callback.
  std::span<const std::byte> first, second;
};
/// Returns false to stop the comparison.
using CompareCallback = std::function<bool(const ComparedNode& node)>;

class Comparison {
 public:
  /// Makes the plans of both backends. Throws the errors of LeafCopies::add and create_plan.
  Comparison(Backend& first, Graph& graph, Backend& second, LeafCopies& leaves, NodeFilter wanted = computes);
  ~Comparison();

  /// Runs the graph on both backends with the inputs of the first graph. Each run writes its own caches. Returns false
  /// if the callback stopped the run. Throws the failures of either backend.
  bool run(const CompareCallback& callback);

  GraphCopy& copy() { return copy_; }
  const GraphPlan& first_plan() const { return *first_plan_; }
  const GraphPlan& second_plan() const { return *second_plan_; }

 private:
  Backend &first_, &second_;
  std::vector<std::byte> first_value_, second_value_;  ///< stored as members because a stream may still write to them
                                                       ///< after an error
  GraphCopy copy_;
  std::vector<const Tensor*> nodes_;  ///< the wanted node at the end of each segment; a last segment without a wanted
                                      ///< node has no element
  std::unique_ptr<GraphPlan> first_plan_, second_plan_;
};

}  // namespace shoal::sched
