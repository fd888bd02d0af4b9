// Runs a random case several times on one device, which can be a meta device. Each run uses one of these modes:
// - one plan for the whole graph
// - one plan that runs in segments
// - one plan per range of nodes
// - two graphs with cached plans
// - two plans with a shared arena
// - a plan that is updated for a new graph
//
// Between runs, weights and caches move to new memory. Caches keep the values that runs write.
#pragma once

#include <string>

#include "devices/device.h"
#include "tests/support/random_graph.h"

namespace shoal::test {

/// Returns "" if every run gives the reference results; otherwise describes the first wrong run. All random decisions
/// depend only on the case's seed and on names.
std::string check_on_device(const RandomCase& one, Device& device);

}  // namespace shoal::test
