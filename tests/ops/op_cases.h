// The conformance cases for every op, dtype and shape class. The cases are data that do not depend on a device.
// conformance_test.cpp runs all cases on every device in kTargets. A case builds a graph of inputs and weights around
// one node. random_leaves provides the values, and reference_eval computes the expected results.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

struct OpCase {
  Op op;
  std::string name;                                      ///< dtype and shape class, such as "q4_0 strided"
  std::function<Tensor*(Graph&, TensorContext&)> build;  ///< returns the node under test
  Tolerance tolerance;
};

/// All cases, in no particular order.
const std::vector<OpCase>& op_cases();

/// Adds a node that applies the op to `x` with default parameters. If a test defines no case for an op with one source,
/// the test uses this node. Returns nullptr if the op does not have exactly one required source.
inline Tensor* with_defaults(Graph& g, Op op, Tensor* x) {
  return info(op).min_src == 1 ? g.add_node(op, info(op).default_params, {x}) : nullptr;
}

}  // namespace shoal::test
