// Memory that shows when it is read before it was written.
#pragma once

#include "devices/backend.h"
#include "graph/graph.h"

namespace shoal::test {

/// Fills all buffers that the graph's tensors lie in, its leaves' too and on every rank of a meta device, with 0xff:
/// NaN in every float type. To be called after the plan was made and before the leaves are written.
void poison(const Graph& graph, const GraphPlan& plan);

}  // namespace shoal::test
