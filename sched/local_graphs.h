// Local graphs: one graph for each backend, with the nodes that a schedule assigns to the backend. All sources are
// local tensors. A tensor that another backend stores becomes an input of the local graph (Graph::copy_of). The local
// graph has its own views of leaves. It has one segment for each split of its backend.
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
  std::vector<LateInput> late;       ///< the copied inputs; each input is written before the split that needs it
  /// Maps tensors of the schedule's graph to local tensors. It contains the nodes and views of this backend, and the
  /// copies.
  std::unordered_map<const Tensor*, Tensor*> tensors;
};

/// The segment of a split in the graph of its backend, and the local tensors for Split::copies in the same order.
struct LocalSplit {
  int segment = 0;
  std::vector<Tensor*> copies;
};

struct LocalGraphs {
  std::vector<LocalGraph> backends;
  std::vector<LocalSplit> splits;
};

/// Options with which the backend plans its graph. The plan uses `arena`.
PlanOptions plan_options(const LocalGraph& local, ComputeArena* arena = nullptr);

/// Throws InternalError if a split would write a copy while another tensor still uses the memory of the copy.
void check_writable(const LocalSplit& split, const GraphPlan& plan);

/// `observed` contains the nodes that the host reads after the split that computes them.
LocalGraphs make_local_graphs(const Schedule& schedule, const std::unordered_set<const Tensor*>& observed = {});

}  // namespace shoal::sched
