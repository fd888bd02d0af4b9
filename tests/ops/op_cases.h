// The conformance cases as data: op x dtype x shape class, independent of any device. The author of a device runs them
// all (conformance_test.cpp). A case builds a graph of inputs and weights around one node; values come from
// random_leaves, what is right from reference_eval.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

struct OpCase {
  Op op;
  std::string name;                                      ///< dtype and shape class: "q4_0 strided"
  std::function<Tensor*(Graph&, TensorContext&)> build;  ///< returns the node under test
  Tolerance tolerance;
};

/// All of them, in no particular order.
const std::vector<OpCase>& op_cases();

/// The op on x with default parameters, for tests in which an op of one source needs no case of its own; nullptr for
/// an op of more or fewer.
inline Tensor* with_defaults(Graph& g, Op op, Tensor* x) {
  return info(op).min_src == 1 ? g.add_node(op, info(op).default_params, {x}) : nullptr;
}

}  // namespace shoal::test
