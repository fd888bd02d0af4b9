// Comparison of two backends on one graph, node by node. Both run it in pieces, the second one a copy (graph_copy.h);
// after each piece the value that it ends with is read from both and shown. No value has to be kept for longer, so that
// this needs little more memory than running the graph.
//
//   LeafCopies leaves(second->device());
//   Comparison comparison(*first, graph, *second, leaves);
//   tensor_set(*tokens, ...);                                       // inputs have memory now
//   comparison.run([](const ComparedNode& node) { ...; return true; });
//
// One thread; the backends do nothing else meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "devices/backend.h"
#include "sched/graph_copy.h"

namespace shoal::sched {

/// Which nodes are compared.
using NodeFilter = std::function<bool(const Tensor& node)>;
/// All that compute something: no views.
bool computes(const Tensor& node);
/// Views too.
NodeFilter only(const Tensor& node);

/// How a graph is planned so that the wanted nodes can be read one by one: it may pause after each of them.
PlanOptions comparison_options(const Graph& graph, const NodeFilter& wanted);

struct ComparedNode {
  const Tensor& node;  ///< of the original graph
  const Tensor& copy;
  /// Its value on both, stored without gaps; complete also where it is a partial sum on a meta device. Valid while the
  /// callback runs.
  std::span<const std::byte> first, second;
};
/// False stops the comparison.
using CompareCallback = std::function<bool(const ComparedNode& node)>;

class Comparison {
 public:
  /// Makes both plans. Throws as LeafCopies::add and create_plan.
  Comparison(Backend& first, Graph& graph, Backend& second, LeafCopies& leaves, NodeFilter wanted = computes);
  ~Comparison();

  /// Runs the graph on both, the second with the inputs of the first. Caches are written on both. False: the callback
  /// stopped it, and the rest did not run. Throws the failures of both.
  bool run(const CompareCallback& callback);

  GraphCopy& copy() { return copy_; }
  const GraphPlan& first_plan() const { return *first_plan_; }
  const GraphPlan& second_plan() const { return *second_plan_; }

 private:
  Backend &first_, &second_;
  std::vector<std::byte> first_value_, second_value_;  ///< here, because a stream may still write when the other fails
  GraphCopy copy_;
  std::vector<const Tensor*> nodes_;  ///< one for each segment; the last may have none
  std::unique_ptr<GraphPlan> first_plan_, second_plan_;
};

}  // namespace shoal::sched
