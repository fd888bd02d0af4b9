// A random case run several times by schedulers over meta devices beside a simple one: weights, caches and some nodes
// on random ones of them, two graphs that alternate on one scheduler or a scheduler for each over the same backends. In
// some runs an evaluation callback looks at random nodes, stops the run at one, throws, or runs a graph by a scheduler
// of its own on the same backends; in between weights and caches move.
#pragma once

#include <span>
#include <string>

#include "devices/device.h"
#include "tests/support/random_graph.h"

namespace shoal::test {

/// "" when every run that was not stopped gives what the reference gives, and every node that was looked at too; else
/// which run is wrong. Takes twice as many of the devices as the case has ranks, and one. What is drawn is a function
/// of the case's seed and of names.
std::string check_schedulers(const RandomCase& one, std::span<Device* const> devices);

}  // namespace shoal::test
