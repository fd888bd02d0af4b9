// Fusion: patterns of consecutive nodes that one kernel computes together. A pattern is used only if two conditions
// hold:
// - No other node reads an intermediate result that the kernel does not store.
// - No result overlaps bytes that the kernel still reads.
#pragma once

#include <cstddef>
#include <span>

#include "devices/backend.h"
#include "devices/cuda/op_kernel.h"
#include "graph/readers.h"

namespace shoal::cuda {

/// One node, or several fused nodes.
struct Step {
  void (*run)(const LaunchContext& context, std::span<Tensor* const> nodes) = nullptr;
  std::span<Tensor* const> nodes;
  ColumnForms writes = {}, reads = {};  ///< forms of the records that the step writes and reads; run_step() copies
                                        ///< both members to the LaunchContext
};
void run_step(const LaunchContext& context, const Step& step);

/// Returns a step with the nodes of the first pattern that matches the front of `nodes`. If no pattern matches, the
/// step contains only the first node. The nodes are in graph order, without views and empty results. The patterns
/// depend on the GPU.
Step fuse(std::span<Tensor* const> nodes, const Readers& readers, const GpuTraits& gpu);

/// The nodes directly before and after a sequence of steps (PlanOptions). Other launches run these two nodes.
struct Neighbours {
  const Tensor* before = nullptr;
  Tensor* behind = nullptr;
};
/// Makes steps write records (column_record.h) of their result columns if later products read these columns. The steps
/// run one after the other, with no other kernels in between. Only norms and attention can write records. Gated
/// products cannot write records, because their thread blocks end inside a group of 32 elements. Returns the forms of
/// two records: the record that the preceding neighbour writes for the steps, and the record that the steps write for
/// the following neighbour.
PassedForms share_records(std::span<Step> steps, const GpuTraits& gpu, const Neighbours& neighbours = {});

}  // namespace shoal::cuda
