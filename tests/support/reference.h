// What a graph means, in float64: every op written as its definition, one element after the other, with nothing in
// common with any device. The yardstick of the conformance suite and of property tests.
#pragma once

#include <functional>

#include "graph/graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

/// A node and its values when it has been computed: caches may be written later on.
using SeenNode = std::function<void(const Tensor& node, const Values& values)>;

/// Values of all nodes and leaves after one run of the graph. `leaves` has the values of every leaf (see
/// random_leaves). Results of f16, bf16 and quantised dtypes are rounded as they would be stored, f32 is not.
/// Caches, and what shows them, have their final values. Throws InvalidArgument for collectives.
TensorValues reference_eval(const Graph& graph, TensorValues leaves, const SeenNode& seen = {});

}  // namespace shoal::test
