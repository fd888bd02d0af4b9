// Evaluates a graph in float64. Every op is computed by its definition, element by element, and shares no code with any
// device. This is the reference for the conformance suite and the property tests.
#pragma once

#include <functional>

#include "graph/graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

/// Called with a node and its values when the node is computed, because caches may be written later.
using SeenNode = std::function<void(const Tensor& node, const Values& values)>;

/// Values of all nodes and leaves after one run of the graph. `leaves` holds the values of every leaf (see
/// random_leaves). Results of f16, bf16 and quantised dtypes are rounded as if stored; f32 results are not rounded.
/// Caches and their views get their final values. Throws InvalidArgument for collectives.
TensorValues reference_eval(const Graph& graph, TensorValues leaves, const SeenNode& seen = {});

}  // namespace shoal::test
