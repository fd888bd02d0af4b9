// Runs a random case on one device and on a meta device and compares; shrinks cases that differ.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "devices/device.h"
#include "meta/rule.h"
#include "tests/support/random_graph.h"
#include "tests/support/tensors.h"

namespace shoal::test {

struct Result {
  Values values;
  bool integers = false;  ///< compared without tolerance
};
/// Outputs and caches after the run, by name.
using Results = std::map<std::string, Result>;

Results run_on_one(const RandomCase& one, Device& device);
/// Partial leaves get asymmetric addends (0.6 and shares of 0.4). Runs the plan twice,
/// each time in memory full of NaN. Throws std::runtime_error when
/// the second run differs in a bit, or when ranks disagree about an output or a cache.
Results run_on_meta(const RandomCase& one, std::span<Device* const> devices,
                    const meta::RuleLookup& rules = meta::rule_for);

/// Of a tensor in a meta buffer: "" when what several ranks hold is the same, else where two of them differ. Mirrored
/// means the same bytes; the owners of a run may have rounded differently, as their shards may have different shapes.
std::string disagreement(const Tensor& tensor, double tolerance);
/// "" when equal within tolerance * (largest finite expected value + 0.1), else what differs most. Integers must be
/// equal; NaN stands for NaN and an infinity for itself, whatever the tolerance.
std::string difference(const Results& expected, const Results& actual, double tolerance);
/// Runs both and compares; an exception counts as a difference.
std::string check_case(const RandomCase& one, std::span<Device* const> devices,
                       const meta::RuleLookup& rules = meta::rule_for);

/// The smallest case found within 20 seconds that still fails: without outputs, nodes and split states that are not
/// needed for it, and with inputs in the place of nodes.
RandomCase shrink(RandomCase one, const std::function<bool(const RandomCase&)>& fails);

}  // namespace shoal::test
