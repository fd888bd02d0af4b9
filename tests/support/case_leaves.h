// Writes the leaves of a random case to memory and reads the results of a run. run_case.h, sched_case.h,
// device_session.h and sched_session.h use these functions.
#pragma once

#include <map>
#include <string>

#include "meta/meta.h"
#include "tests/support/random_graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

struct Result {
  Values values;
  bool integers = false;  ///< whether the values are integers; integers must be equal
};
/// Outputs and caches after a run. The key is the name of the tensor.
using Results = std::map<std::string, Result>;

/// The state that the split-state callback returns for this leaf.
meta::SplitState state_of(const RandomCase& one, const Tensor& leaf);
/// The answers of the constraint callback; empty if the case has no constraints. `one` must outlive the callback.
meta::ConstraintCallback constraints_of(const RandomCase& one);
/// Values of a leaf in run number `run` of the case. The values of inputs differ from run to run.
Values leaf_values(const RandomCase& one, const Tensor& leaf, uint64_t run = 0);
/// Writes all elements of a leaf. If the leaf is Partial on a meta device, the addends of the ranks differ. Rank 0 gets
/// 0.6 of the value, and the other ranks divide the remaining 0.4 equally. If the case has whole numbers, all addends
/// are whole numbers.
void write_leaf(const RandomCase& one, Tensor& leaf, const Values& values);

/// Returns the outputs and the current caches. Throws std::runtime_error if two ranks of a meta device disagree about a
/// tensor.
Results read_results(const RandomCase& one, const Graph& graph, const TensorContext& weights);

/// Compares the ranks' values of a tensor in a meta buffer. Returns "" if the values agree, otherwise names the first
/// element or byte on which two ranks differ. Mirrored copies must have the same bytes. In a split tensor, several
/// ranks can own one value. These ranks may round the value differently, because their shards may have different
/// shapes.
std::string disagreement(const Tensor& tensor, double tolerance);
/// Returns "" if all values are equal within tolerance * (largest finite expected value + 0.1), otherwise describes the
/// largest difference. Integers must be equal. With any tolerance, NaN equals NaN, and an infinity equals an infinity
/// of the same sign.
std::string difference(const Results& expected, const Results& actual, double tolerance);

}  // namespace shoal::test
