// Runs a random case several times on one device (a meta device or a simple device), each time in a different mode. The
// modes are: one plan for the whole graph, segments, one plan per range, cached plans of alternating graphs, a shared
// arena, and a plan handed over to a new graph. Between runs weights and caches move to new memory. Caches keep the
// values that runs write.
#pragma once

#include <string>

#include "devices/device.h"
#include "tests/support/random_graph.h"

namespace shoal::test {

/// "" if every run gives the reference results; otherwise the number and mode of the wrong run. All random decisions
/// are functions of the case's seed and of names.
std::string check_on_device(const RandomCase& one, Device& device);

}  // namespace shoal::test
