// Local graphs: what each backend of a schedule runs, as a graph of its own. A node appears in the graph of its
// backend, on local sources; what comes from elsewhere is an input there (Graph::copy_of), views of leaves are made
// again. The graph of a backend has one segment for each of its splits.
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
  std::unique_ptr<Graph> graph;      ///< nullptr for a backend without splits
  std::vector<int> cuts;             ///< for PlanOptions
  std::vector<const Tensor*> shown;  ///< what other backends or the host read between segments
  std::vector<LateInput> late;       ///< the copies, each written before the split that brings it
  /// By tensor of the schedule's graph: nodes that run here, views made here, and copies.
  std::unordered_map<const Tensor*, Tensor*> tensors;
};

/// Where a split lies in its backend's graph, and its copies in the order of Split::copies.
struct LocalSplit {
  int segment = 0;
  std::vector<Tensor*> copies;
};

struct LocalGraphs {
  std::vector<LocalGraph> backends;
  std::vector<LocalSplit> splits;
};

/// How a backend is to plan its graph. `arena`: of that backend.
PlanOptions plan_options(const LocalGraph& local, ComputeArena* arena = nullptr);

/// Throws InternalError where a split would write a copy while its memory is another tensor's.
void check_writable(const LocalSplit& split, const GraphPlan& plan);

/// `observed`: nodes that the host looks at after their split.
LocalGraphs make_local_graphs(const Schedule& schedule, const std::unordered_set<const Tensor*>& observed = {});

}  // namespace shoal::sched
