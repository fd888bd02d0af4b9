// Local graphs: one graph for each backend, with the nodes that a schedule assigns to the backend. The sources of these
// nodes are local tensors, or weights and caches that the backend uses in place. A tensor that is copied to the backend
// becomes an input of the local graph (Graph::copy_of). The local graph contains its own views of leaves. It has one
// segment for each split that runs on the backend.
//
//   schedule      split 0 on A: h = f(x), a = g(h)    split 1 on B: y = f(a)    split 2 on A: z = g(h, y)
//   graph on A    copies x, y;  h = f(x), a = g(h) | z = g(h, y)       cuts {2}, shown {a}
//   graph on B    copy a;       y = f(a)                               cuts {},  shown {y}
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "graph/memory_plan.h"
#include "sched/schedule.h"

namespace shoal::sched {

struct LocalGraph {
  std::unique_ptr<Graph> graph;      ///< nullptr if the backend has no splits
  std::vector<int> cuts;             ///< value for PlanOptions::cuts
  std::vector<const Tensor*> shown;  ///< values that other backends or the host read between segments
  std::vector<LateInput> late;       ///< inputs that hold copies; each input is written before the first split that
                                     ///< reads the input
  /// Maps tensors of the schedule's graph to local tensors. The keys are the nodes and views that this backend
  /// computes, and the tensors that are copied to this backend.
  std::unordered_map<const Tensor*, Tensor*> tensors;
};

/// `segment` is the number of the split's segment in the local graph. `copies` contains the local tensor of each
/// element of Split::copies, in the same order.
struct LocalSplit {
  int segment = 0;
  std::vector<Tensor*> copies;
};

struct LocalGraphs {
  std::vector<LocalGraph> backends;
  std::vector<LocalSplit> splits;
};

/// Options with which the backend creates the plan of its local graph. The plan takes its compute memory from `arena`.
PlanOptions plan_options(const LocalGraph& local, ComputeArena* arena = nullptr);

/// Throws InternalError if a split would write a copy while another tensor still uses the memory of the copy.
void check_writable(const LocalSplit& split, const GraphPlan& plan);

/// The host reads each node in `observed` after the split that computes the node.
LocalGraphs make_local_graphs(const Schedule& schedule, const std::unordered_set<const Tensor*>& observed = {});

}  // namespace shoal::sched
