// Evaluates a graph in float64. Every op is computed element by element from its definition. The code is independent of
// all devices. The conformance suite and the property tests compare results with this reference.
#pragma once

#include <functional>

#include "graph/graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

/// Called directly after each node is computed. Later nodes may write to caches and so change the values of views.
using SeenNode = std::function<void(const Tensor& node, const Values& values)>;

/// Returns the values of all nodes and leaves after one run of the graph. `leaves` contains the values of every leaf
/// (see random_leaves). f32 results are not rounded. All other results are rounded as if they were stored in their
/// dtype. Caches and their views have the values after the last write. Throws InvalidArgument for collectives.
TensorValues reference_eval(const Graph& graph, TensorValues leaves, const SeenNode& seen = {});

}  // namespace shoal::test
