// CpuPlan: a graph range compiled for one CPU backend. What does not change between runs is resolved once: which
// nodes run (views and empty results do not), their kernels, workspaces, and whether the whole team works on a node.
// The team walks the steps together (team.h), with a barrier where another thread must see a step's result.
#pragma once

#include <vector>

#include "devices/allocate.h"
#include "devices/backend.h"
#include "devices/cpu/team.h"

namespace shoal::cpu {

class CpuBackend;

/// The steps of a range for a team of `threads`. The nodes must be placed and supported.
std::vector<Step> compile_steps(const GraphRange& range, int threads);

class CpuPlan final : public GraphPlan {
 public:
  /// Throws DeviceError when a node is not supported or memory is short, InvalidArgument when a source is not placed.
  CpuPlan(CpuBackend& backend, const GraphRange& range);
  /// Waits until the last queued run is finished.
  ~CpuPlan() override;

  Backend& backend() const override;
  size_t allocated_bytes() const override { return memory_.bytes(); }

  /// On the worker's thread.
  void run(Team& team) { team.run(steps_); }
  /// The run queued last is finished at this position of the backend's timeline.
  void set_last_run(uint64_t position) { last_run_ = position; }

 private:
  CpuBackend& backend_;
  GraphMemory memory_;
  std::vector<Step> steps_;
  uint64_t last_run_ = 0;
};

}  // namespace shoal::cpu
