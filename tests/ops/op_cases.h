// The conformance cases as data: op x dtype x shape class, independent of any device. conformance_test.cpp runs all of
// them on every device in kTargets. A case builds a graph of inputs and weights around one node. random_leaves provides
// the values, and reference_eval computes the expected results.
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

/// All cases, in no particular order.
const std::vector<OpCase>& op_cases();

/// The op on x with default parameters: the case of an op with one source that has no case of its own. nullptr if the
/// op does not have exactly one source.
inline Tensor* with_defaults(Graph& g, Op op, Tensor* x) {
  return info(op).min_src == 1 ? g.add_node(op, info(op).default_params, {x}) : nullptr;
}

}  // namespace shoal::test
