// Fills memory with NaN, so that reads before the first write change the results.
#pragma once

#include "devices/backend.h"
#include "graph/graph.h"

namespace shoal::test {

/// Fills all buffers of the graph's tensors with 0xff, which is NaN in every float type. The buffers of leaves and, on
/// a meta device, the buffers of every rank are included. Call this function after the plan is created and before the
/// leaves are written.
void poison(const Graph& graph, const GraphPlan& plan);

}  // namespace shoal::test
