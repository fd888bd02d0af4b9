// Memory that reveals reads before the first write.
#pragma once

#include "devices/backend.h"
#include "graph/graph.h"

namespace shoal::test {

/// Fills all buffers of the graph's tensors with 0xff, which is NaN in every float type. This includes buffers of
/// leaves and of every rank of a meta device. Call it after making the plan and before writing the leaves.
void poison(const Graph& graph, const GraphPlan& plan);

}  // namespace shoal::test
