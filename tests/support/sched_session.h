// Runs a random case several times by schedulers over meta devices and a simple device. Weights, caches and some nodes
// are on random backends. Two graphs alternate on one scheduler, or each graph has its own scheduler over the same
// backends. In some runs an evaluation callback reads random nodes, stops the run, throws, or runs another graph by
// another scheduler on the same backends. Between runs weights and caches move to new memory.
#pragma once

#include <span>
#include <string>

#include "devices/device.h"
#include "tests/support/random_graph.h"

namespace shoal::test {

/// "" if every completed run and every node that a callback read match the reference; otherwise describes the wrong
/// run. Uses 2 * ranks + 1 of the devices. All random decisions are functions of the case's seed and of names.
std::string check_schedulers(const RandomCase& one, std::span<Device* const> devices);

}  // namespace shoal::test
