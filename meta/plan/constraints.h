// Constraints: layouts that a program wants for inputs and nodes of a graph. The layouts of weights and caches are the
// answers of the split-state callback, so planning refuses constraints for them.
// - A requirement always holds: the result of the node is converted to this layout directly after the node, and all
//   readers get the converted value. The caller writes a required input in this layout.
// - A hint is a preference. Two costs are compared: with the hint, and with the strategy that propagation would choose
//   without the hint. Each cost is the predicted seconds of the node, of the conversions of its sources and of the
//   conversion of its result. The hint is followed if its cost is at most `factor` times the other cost. For an input,
//   the costs are the costs of the first node of the range that reads the input.
// - The op reshard (graph/ops/ops.h) is a requirement for its own result. Its source keeps its layout.
//
//   y = mul_mat(down, h) is partial on 2 ranks. The requirement "split 1 [3:{0} 1:{1}]" for y inserts a reduce_scatter.
//   With the requirement "mirrored", y is all-reduced, even if a later node could take the partial sums.
//
// A requirement may contradict other facts: set_rows and set_slice keep the layout of their cache, and results are
// mirrored if the devices belong to several processes. In these cases planning throws InvalidArgument, and the message
// names both sides. A reshard that is an output is mirrored instead. All functions are pure.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

/// The default of LayoutConstraint::factor.
inline constexpr double kHintFactor = 1.25;

struct LayoutConstraint {
  Layout layout;
  bool required = true;
  double factor = kHintFactor;  ///< hints only
  bool operator==(const LayoutConstraint&) const = default;
};

/// Called at least once for each tensor of a range. nullopt: no constraint.
using ConstraintLookup = std::function<std::optional<LayoutConstraint>(const Tensor&)>;

/// A tensor with a constraint, or a reshard node. A plan lists them with the conversions that they cause: the
/// conversion to the layout, and later conversions from the layout to the layouts that readers need.
struct ConstrainedTensor {
  const Tensor* tensor = nullptr;
  LayoutConstraint constraint;
  bool followed = true;  ///< false for a hint that is too expensive
  int conversions = 0;   ///< number of conversions, with and without collectives
  int64_t bytes = 0;     ///< bytes of the collectives of these conversions (Step::bytes)
  double seconds = 0;    ///< predicted seconds of these conversions
};

/// Throws InvalidArgument if the weight, the cache or the copy of a weight has a constraint.
void check_unconstrained(const Tensor& tensor, const ConstraintLookup& lookup);

/// The constraints of the inputs of the graph and of the nodes of the range, inputs first. A reshard node gets a
/// requirement from its text. Throws InvalidArgument for a text that is no layout of the node, and for a required
/// layout that contradicts the text.
std::vector<ConstrainedTensor> constraints_of(const GraphRange& range, int ranks, const ConstraintLookup& lookup);

}  // namespace shoal::meta
