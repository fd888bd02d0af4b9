// A random case run several times on one device, a meta device or a simple one, each time in another way: planned as
// a whole, in segments, range by range, through kept plans of graphs that alternate, in a shared arena, handed over to
// a graph built anew. In between weights and caches move to new memory; caches keep what the runs write.
#pragma once

#include <string>

#include "devices/device.h"
#include "tests/support/random_graph.h"

namespace shoal::test {

/// "" when every run gives what the reference gives, else which run in which way does not. Everything that is drawn is
/// a function of the case's seed and of names.
std::string check_on_device(const RandomCase& one, Device& device);

}  // namespace shoal::test
