// Nodes that run together: patterns of neighbours in a graph for which there are kernels that do all of them at once. A
// pattern is used only where no other node reads a value that its kernel does not write, and where no result lies on
// bytes that the kernel still reads.
#pragma once

#include <cstddef>
#include <span>

#include "devices/backend.h"
#include "devices/cuda/op_kernel.h"
#include "graph/readers.h"

namespace shoal::cuda {

/// Nodes that one launch sequence computes.
struct Step {
  void (*run)(const LaunchContext& context, std::span<Tensor* const> nodes) = nullptr;
  std::span<Tensor* const> nodes;
  ColumnForms writes = {}, reads = {};  ///< of LaunchContext
};
void run_step(const LaunchContext& context, const Step& step);

/// The longest pattern that the first of these nodes begins; just that node when there is none. The nodes follow each
/// other in the graph, without the views and empty results between them; they run on such a GPU.
Step fuse(std::span<Tensor* const> nodes, const Readers& readers, const GpuTraits& gpu);

/// Nodes of other launches directly before and behind some steps (PlanOptions).
struct Neighbours {
  const Tensor* before = nullptr;
  Tensor* behind = nullptr;
};
/// Of steps that run one after the other with nothing in between: has those whose results are columns of products
/// behind them leave records. Tells which records it counts on, and leaves, for the neighbours.
PassedForms share_records(std::span<Step> steps, const GpuTraits& gpu, const Neighbours& neighbours = {});

}  // namespace shoal::cuda
