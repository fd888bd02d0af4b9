// CudaPlan is a graph range compiled for one CUDA backend. A plan consists of memory and steps. Each step launches the
// kernels of one node or of a few fused nodes. The first run of a group of segments launches the steps one by one.
// Later runs of this group replay a CUDA graph that was captured from the group's steps.
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
  /// Throws DeviceError if a node is not supported or memory is insufficient. Throws InvalidArgument if a source has no
  /// memory.
  CudaPlan(CudaBackend& backend, const GraphRange& range, const PlanOptions& options);
  /// Waits for the last queued run.
  ~CudaPlan() override;

  size_t allocated_bytes() const override { return memory_.bytes(); }
  int segments() const override { return static_cast<int>(cuts_.size()) + 1; }
  int writable_from(const Tensor& input) const override { return memory_.writable_from(input); }
  PassedForms passed_forms() const override { return passed_; }

  bool fits(const Graph& graph) const { return *graph.topology() == *topology_ && memory_.can_move_to(graph); }
  /// Replaces the graph by another graph of the same structure (fits()). No run may be queued. CUDA graphs stay valid
  /// if no address has changed. Otherwise each CUDA graph is updated in place at its next run.
  void move_to(Graph& graph);
  /// Runs segments [first, last), on the launcher's thread. `recording`: whether the stream is already being captured.
  /// With an abort callback, steps are launched one by one, without a CUDA graph. Throws Aborted or DeviceError.
  void run(const LaunchContext& context, int first, int last, bool recording, const AbortCallback& abort);
  /// Sets the name that a run of segments [first, last) has in a trace.
  void describe(int first, int last, TraceSpan& span) const;
  /// Call this function when a run is queued.
  void has_run() { was_queued_ = true; }

 private:
  /// The CUDA graph of a group of segments.
  struct Captured {
    int runs = 0;
    bool stale = false;  ///< addresses have changed since the capture
    bool broken = false;
    cudaGraphExec_t exec = nullptr;
  };

  void compile();
  /// Adds the steps of one segment.
  void add_steps(std::span<Tensor* const> nodes, const Readers& readers, const Neighbours& neighbours);
  size_t fingerprint() const;
  std::span<const Step> steps(int first, int last) const;
  void launch(const LaunchContext& context, std::span<const Step> steps, const AbortCallback& abort) const;
  /// Returns cudaSuccess, or the error that prevented the capture.
  cudaError_t capture(const LaunchContext& context, std::span<const Step> steps, Captured& into) const;

  CudaBackend& backend_;  ///< valid only if has_backend()
  std::vector<int> cuts_, shown_;
  int before_, behind_;  ///< ids of the nodes PlanOptions::before and PlanOptions::behind; -1 if absent
  std::string label_;
  std::shared_ptr<const Topology> topology_;
  GraphMemory memory_;
  std::vector<Tensor*> running_;  ///< nodes that are neither views nor empty
  std::vector<Step> steps_;
  std::vector<size_t> begins_;  ///< index of the first step of each segment; last element: total number of steps
  PassedForms passed_;
  size_t fingerprint_ = 0;
  /// The key is a range of segments [first, last). The launcher's thread uses this map. Other threads use the map only
  /// while nothing is queued.
  std::map<std::pair<int, int>, Captured> captured_;
  bool was_queued_ = false;
};

}  // namespace shoal::cuda
