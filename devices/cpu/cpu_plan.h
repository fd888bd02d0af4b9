// CpuPlan: a graph range compiled for one CPU backend. What does not change between runs is resolved once: which
// nodes run (views and empty results do not), their kernels, workspaces, and whether the whole team works on a node.
// A run is one parallel region: all threads walk the steps together, with a barrier where one step's result
// must be seen by another thread.
#pragma once

#include <span>
#include <vector>

#include "devices/allocate.h"
#include "devices/backend.h"
#include "devices/cpu/op_kernel.h"

namespace shoal::cpu {

class CpuBackend;

struct Step {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  Tensor* node = nullptr;
  std::byte* workspace = nullptr;
  bool alone = false;    ///< thread 0 does it: too small to share
  bool barrier = false;  ///< the team meets after it
};

/// The steps of a range for a team of `threads`. The nodes must be placed and supported.
std::vector<Step> compile_steps(const GraphRange& range, int threads);
/// Runs the steps on the calling thread and threads - 1 others.
void run_steps(std::span<const Step> steps, int threads);

class CpuPlan final : public GraphPlan {
 public:
  /// Throws DeviceError when a node is not supported or memory is short, InvalidArgument when a source is not placed.
  CpuPlan(CpuBackend& backend, const GraphRange& range);
  /// Waits until the last queued run is finished.
  ~CpuPlan() override;

  Backend& backend() const override;
  size_t allocated_bytes() const override { return memory_.bytes(); }

  /// On the worker's thread.
  void run() { run_steps(steps_, threads_); }
  /// The run queued last is finished at this position of the backend's timeline.
  void set_last_run(uint64_t position) { last_run_ = position; }

 private:
  CpuBackend& backend_;
  int threads_;
  GraphMemory memory_;
  std::vector<Step> steps_;
  uint64_t last_run_ = 0;
};

}  // namespace shoal::cpu
