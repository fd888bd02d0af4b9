// The leaves of a random case in memory, and the results of a run. All files that run cases use it (run_case.h,
// sched_case.h, device_session.h, sched_session.h).
#pragma once

#include <map>
#include <string>

#include "meta/meta.h"
#include "tests/support/random_graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

struct Result {
  Values values;
  bool integers = false;  ///< integers are compared without tolerance
};
/// Outputs and caches after a run, by name.
using Results = std::map<std::string, Result>;

/// The result of the split-state callback for this leaf.
meta::SplitState state_of(const RandomCase& one, const Tensor& leaf);
/// Values of a leaf in run number `run` of the case. Inputs have different values in different runs.
Values leaf_values(const RandomCase& one, const Tensor& leaf, uint64_t run = 0);
/// Writes a whole leaf. A leaf that is Partial on a meta device gets asymmetric addends: 0.6 of the value on one rank
/// and shares of the remaining 0.4 on the other ranks, or whole numbers.
void write_leaf(const RandomCase& one, Tensor& leaf, const Values& values);

/// The outputs and the current caches. Throws std::runtime_error if ranks of a meta device disagree about a tensor.
Results read_results(const RandomCase& one, const Graph& graph, const TensorContext& weights);

/// For a tensor in a meta buffer: "" if all ranks hold the same values, otherwise the place where two ranks differ.
/// Mirrored copies must have the same bytes. Values that several ranks own in a split tensor may be rounded
/// differently, because the ranks' shards may have different shapes.
std::string disagreement(const Tensor& tensor, double tolerance);
/// "" if all values are equal within tolerance * (largest finite expected value + 0.1), otherwise the largest
/// difference. Integers must be equal. NaN equals NaN, and an infinity equals itself, whatever the tolerance.
std::string difference(const Results& expected, const Results& actual, double tolerance);

}  // namespace shoal::test
