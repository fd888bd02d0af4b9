// The leaves of a random case in memory, and what a run leaves behind: for every way of running one (run_case.h,
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
  bool integers = false;  ///< compared without tolerance
};
/// Outputs and caches after the run, by name.
using Results = std::map<std::string, Result>;

/// The split-state callback's answer.
meta::SplitState state_of(const RandomCase& one, const Tensor& leaf);
/// Values of a leaf in a run of the case: those of inputs change from run to run.
Values leaf_values(const RandomCase& one, const Tensor& leaf, uint64_t run = 0);
/// Writes a whole leaf. One that lies Partial on a meta device gets asymmetric addends: 0.6 and shares of 0.4, or whole
/// numbers.
void write_leaf(const RandomCase& one, Tensor& leaf, const Values& values);

/// Outputs, and caches as they are now. Throws std::runtime_error when ranks of a meta device disagree about one.
Results read_results(const RandomCase& one, const Graph& graph, const TensorContext& weights);

/// Of a tensor in a meta buffer: "" when what several ranks hold is the same, else where two of them differ. Mirrored
/// means the same bytes; the owners of a run may have rounded differently, as their shards may have different shapes.
std::string disagreement(const Tensor& tensor, double tolerance);
/// "" when equal within tolerance * (largest finite expected value + 0.1), else what differs most. Integers must be
/// equal; NaN stands for NaN and an infinity for itself, whatever the tolerance.
std::string difference(const Results& expected, const Results& actual, double tolerance);

}  // namespace shoal::test
