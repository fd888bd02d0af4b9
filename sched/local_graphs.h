// Local graphs: one graph for each backend, with the nodes that a schedule assigns to it. All sources are local: a
// tensor that is stored elsewhere becomes an input of the local graph (Graph::copy_of), and the local graph has its own
// views of leaves. The graph of a backend has one segment for each of its splits.
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
  std::vector<int> cuts;             ///< PlanOptions::cuts
  std::vector<const Tensor*> shown;  ///< values that other backends or the host read between segments
  std::vector<LateInput> late;       ///< the copies, each written before the split that needs it
  /// Local tensor for each tensor of the schedule's graph: nodes that run here, views made here, and copies.
  std::unordered_map<const Tensor*, Tensor*> tensors;
};

/// The segment of a split in its backend's graph, and the local tensors of Split::copies in the same order.
struct LocalSplit {
  int segment = 0;
  std::vector<Tensor*> copies;
};

struct LocalGraphs {
  std::vector<LocalGraph> backends;
  std::vector<LocalSplit> splits;
};

/// Options for the backend to plan its graph, with the backend's arena.
PlanOptions plan_options(const LocalGraph& local, ComputeArena* arena = nullptr);

/// Throws InternalError if a split would write a copy while the copy's memory belongs to another tensor.
void check_writable(const LocalSplit& split, const GraphPlan& plan);

/// `observed`: nodes that the host reads after the split that computes them.
LocalGraphs make_local_graphs(const Schedule& schedule, const std::unordered_set<const Tensor*>& observed = {});

}  // namespace shoal::sched
