// Runs a random case several times with schedulers over meta devices and an ordinary device. Some nodes, weights and
// caches are assigned to random backends. Two graphs alternate on one scheduler, or each graph has its own scheduler
// over the same backends. In some runs, an evaluation callback reads random nodes and may stop the run or throw. The
// callback may also run another graph with another scheduler over the same backends. Between runs, weights and caches
// move to new memory.
#pragma once

#include <span>
#include <string>

#include "devices/device.h"
#include "tests/support/random_graph.h"

namespace shoal::test {

/// Returns "" if all completed runs and all nodes that callbacks read match the reference; otherwise describes the
/// wrong run. Uses at most 2 * ranks + 2 of the devices. Each random decision depends only on the case's seed and on
/// the decision's name (dice.h).
std::string check_schedulers(const RandomCase& one, std::span<Device* const> devices);

}  // namespace shoal::test
