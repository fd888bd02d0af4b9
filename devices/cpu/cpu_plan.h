// CpuPlan: a graph range compiled for one CPU backend. What does not change between runs is resolved once: which
// nodes run (views and empty results do not), their kernels, workspaces, and whether the whole team works on a node.
// The team does the steps together (team.h).
#pragma once

#include <vector>

#include "devices/cpu/team.h"
#include "devices/cpu/unpacked.h"
#include "devices/cpu/worker.h"
#include "devices/node_plan.h"
#include "graph/topology.h"

namespace shoal::cpu {

class CpuBackend;

/// The steps of a range for a team of `threads`. The nodes must be placed and supported.
std::vector<Step> compile_steps(const GraphRange& range, int threads);

class CpuPlan final : public NodePlan {
 public:
  /// Throws DeviceError when a node is not supported or memory is short, InvalidArgument when a source is not placed.
  CpuPlan(CpuBackend& backend, const GraphRange& range, const PlanOptions& options);
  /// Waits until the last queued run is finished.
  ~CpuPlan() override;

  size_t allocated_bytes() const override { return NodePlan::allocated_bytes() + unpacked_.bytes(); }

  bool fits(const Graph& graph) const { return *graph.topology() == *topology_ && memory().can_move_to(graph); }
  /// To a graph that fits; no run may be queued.
  void move_to(Graph& graph);
  /// Segments [first, last), on the worker's thread. Throws Aborted.
  void run(Team& team, int first, int last);
  /// What a trace calls a run of segments [first, last).
  void describe(int first, int last, TraceSpan& span) const;
  /// Waits for the run queued last.
  void wait() const;
  /// The run queued last is finished at this position.
  void set_last_run(const WaitWork& position) { last_run_ = position; }

 private:
  void compile();

  CpuBackend& backend_;  ///< see has_backend()
  int threads_;          ///< that the workspaces are large enough for; a run uses no more
  std::string label_;
  std::shared_ptr<const Topology> topology_;
  std::vector<Step> steps_;
  UnpackedSources unpacked_;
  std::vector<size_t> begins_;  ///< first step of each segment, and the end of the last
  WaitWork last_run_{nullptr, 0};
};

}  // namespace shoal::cpu
