// CudaPlan: a graph range compiled for one CUDA backend: its memory, and steps that each launch the kernels of one node
// or of a few nodes together. The first run of a group of segments launches the steps one by one; from the second run
// on it replays a CUDA graph captured from them.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "devices/allocate.h"
#include "devices/backend.h"
#include "devices/cuda/fusion.h"
#include "graph/readers.h"
#include "graph/topology.h"

namespace shoal::cuda {

class CudaBackend;

class CudaPlan final : public GraphPlan {
 public:
  /// Throws DeviceError when a node is not supported or memory is short, InvalidArgument when a source is not placed.
  CudaPlan(CudaBackend& backend, const GraphRange& range, const PlanOptions& options);
  /// Waits until the last queued run is finished.
  ~CudaPlan() override;

  size_t allocated_bytes() const override { return memory_.bytes(); }
  int segments() const override { return static_cast<int>(cuts_.size()) + 1; }
  int writable_from(const Tensor& input) const override { return memory_.writable_from(input); }
  PassedForms passed_forms() const override { return passed_; }

  bool fits(const Graph& graph) const { return *graph.topology() == *topology_ && memory_.can_move_to(graph); }
  /// To a graph that fits; no run may be queued. CUDA graphs stay where no address has changed, and are updated in
  /// place at their next run where some have.
  void move_to(Graph& graph);
  /// Segments [first, last), on the launcher's thread. `recording`: the stream is being captured already. With an abort
  /// callback nodes are launched one by one. Throws Aborted or DeviceError.
  void run(const LaunchContext& context, int first, int last, bool recording, const AbortCallback& abort);
  /// What a trace calls a run of segments [first, last).
  void describe(int first, int last, TraceSpan& span) const;
  /// A run was queued.
  void has_run() { was_queued_ = true; }

 private:
  /// A group of segments as a CUDA graph.
  struct Captured {
    int runs = 0;
    bool stale = false;  ///< addresses have changed since
    bool broken = false;
    cudaGraphExec_t exec = nullptr;
  };

  void compile();
  /// Those of a segment.
  void add_steps(std::span<Tensor* const> nodes, const Readers& readers, const Neighbours& neighbours);
  size_t fingerprint() const;
  std::span<const Step> steps(int first, int last) const;
  void launch(const LaunchContext& context, std::span<const Step> steps, const AbortCallback& abort) const;
  /// Why it cannot be captured, or cudaSuccess.
  cudaError_t capture(const LaunchContext& context, std::span<const Step> steps, Captured& into) const;

  CudaBackend& backend_;  ///< see has_backend()
  std::vector<int> cuts_, shown_;
  int before_, behind_;  ///< ids of PlanOptions' nodes; -1: none
  std::string label_;
  std::shared_ptr<const Topology> topology_;
  GraphMemory memory_;
  std::vector<Tensor*> running_;  ///< neither views nor empty
  std::vector<Step> steps_;
  std::vector<size_t> begins_;  ///< first step of each segment, and the end of the last
  PassedForms passed_;
  size_t fingerprint_ = 0;
  /// By the first segment and the one behind the last. Launcher's thread, or while nothing is queued.
  std::map<std::pair<int, int>, Captured> captured_;
  bool was_queued_ = false;
};

}  // namespace shoal::cuda
