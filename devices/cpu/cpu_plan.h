// CpuPlan is a graph range compiled for one CPU backend. The plan stores everything that does not change between runs.
// For each node, the plan contains the kernel, the workspace and whether the whole team shares the node. The plan omits
// views and nodes with empty results. The team runs the steps together (team.h).
#pragma once

#include <vector>

#include "devices/cpu/team.h"
#include "devices/cpu/unpacked.h"
#include "devices/cpu/worker.h"
#include "devices/node_plan.h"
#include "graph/topology.h"

namespace shoal::cpu {

class CpuBackend;

/// The steps of a range for a team of `threads` threads. The device must support all nodes, and all nodes must be
/// placed.
std::vector<Step> compile_steps(const GraphRange& range, int threads);

class CpuPlan final : public NodePlan {
 public:
  /// Throws DeviceError if a node is not supported or memory is insufficient. Throws InvalidArgument if a source is not
  /// placed.
  CpuPlan(CpuBackend& backend, const GraphRange& range, const PlanOptions& options);
  /// Waits for the most recently queued run.
  ~CpuPlan() override;

  size_t allocated_bytes() const override { return NodePlan::allocated_bytes() + unpacked_.bytes(); }

  bool fits(const Graph& graph) const { return *graph.topology() == *topology_ && memory().can_move_to(graph); }
  /// Moves the plan to a graph of the same topology. During the call, no run of the plan may be queued.
  void move_to(Graph& graph);
  /// Runs segments [first, last) on the worker's thread. Throws Aborted if the abort callback stops the run.
  void run(Team& team, int first, int last);
  /// Describes a run of segments [first, last) for a trace.
  void describe(int first, int last, TraceSpan& span) const;
  /// Waits for the most recently queued run.
  void wait() const;
  /// Sets the stream position at which the most recently queued run is finished.
  void set_last_run(const WaitWork& position) { last_run_ = position; }

 private:
  void compile();

  CpuBackend& backend_;  ///< valid only if has_backend()
  int threads_;          ///< maximum number of threads of a run; the workspaces are large enough for this number
  std::string label_;
  std::shared_ptr<const Topology> topology_;
  std::vector<Step> steps_;
  UnpackedSources unpacked_;
  std::vector<size_t> begins_;  ///< index of each segment's first step, followed by the number of steps
  WaitWork last_run_{nullptr, 0};
};

}  // namespace shoal::cpu
