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

namespace shoal::test {

/// Values of outputs and caches after the run, by name.
using Results = std::map<std::string, std::vector<float>>;

Results run_on_one(const RandomCase& one, Device& device);
/// Partial leaves get asymmetric addends (0.6 and shares of 0.4). Runs the plan twice: the second run must not differ.
Results run_on_meta(const RandomCase& one, std::span<Device* const> devices,
                    const meta::RuleLookup& rules = meta::rule_for);

/// "" when equal within tolerance, else what differs most.
std::string difference(const Results& expected, const Results& actual, double tolerance);
/// Runs both and compares; an exception counts as a difference.
std::string check_case(const RandomCase& one, std::span<Device* const> devices,
                       const meta::RuleLookup& rules = meta::rule_for);

/// The smallest case found within 20 seconds that still fails: without outputs, nodes and split states that are not
/// needed for it.
RandomCase shrink(RandomCase one, const std::function<bool(const RandomCase&)>& fails);

}  // namespace shoal::test
