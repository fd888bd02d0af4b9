#include "meta/plan/constraints.h"

#include "base/error.h"

namespace shoal::meta {
namespace {

/// A copy of a weight has the layout that the split-state callback returns for the weight.
bool is_weight_copy(const Tensor& input) {
  const Tensor* original = input.copied_from;
  return original != nullptr && original->is_leaf() && original->role == Role::kWeight;
}

}  // namespace

void check_unconstrained(const Tensor& tensor, const ConstraintLookup& lookup) {
  require<InvalidArgument>(!lookup || !lookup(tensor),
                           "{} has a constraint, but the split-state callback defines the layouts of weights and "
                           "caches: return the split state there, and remove the constraint",
                           describe(tensor));
}

std::vector<ConstrainedTensor> constraints_of(const GraphRange& range, int ranks, const ConstraintLookup& lookup) {
  std::vector<ConstrainedTensor> found;
  const auto ask = [&](const Tensor& tensor) { return lookup ? lookup(tensor) : std::nullopt; };
  for (const Tensor* input : range.graph->inputs()) {
    if (is_weight_copy(*input)) {
      check_unconstrained(*input, lookup);
      continue;
    }
    if (auto constraint = ask(*input)) found.push_back({input, *std::move(constraint)});
  }
  for (const Tensor* node : nodes_of(range)) {
    auto constraint = ask(*node);
    if (node->op == Op::kReshard) {
      const Layout own = layout_of_reshard(*node, ranks);
      require<InvalidArgument>(
          !constraint || !constraint->required || constraint->layout == own,
          "the required layout '{}' of {} contradicts the layout '{}' of its reshard(); change one "
          "of them",
          constraint ? constraint->layout.to_string() : "", node->name, own.to_string());
      constraint = LayoutConstraint{own};
    }
    if (constraint) found.push_back({node, *std::move(constraint)});
  }
  return found;
}

}  // namespace shoal::meta
