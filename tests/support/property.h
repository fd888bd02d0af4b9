// The loop of the property tests: random cases by seed, and what a failure prints.
//
// SHOAL_PROPERTY_CASES=N   cases in all (default: what the test says)
// SHOAL_PROPERTY_RANKS=N   only the cases on at most N ranks (default: all), for a plug-in with few devices
// SHOAL_PROPERTY_SEED=S    just this case, as a failure prints it
//
// A case that fails is shrunk and printed as text with its seed. One that ends the program (a fault, an abort, or no
// end after five minutes) is printed as it is.
#pragma once

#include <functional>
#include <string>

#include "tests/support/random_graph.h"

namespace shoal::test {

struct Property {
  std::function<RandomCase(uint64_t seed)> draw;
  /// "" or what is wrong.
  std::function<std::string(const RandomCase&)> check;
  int64_t cases = 2000;  ///< in all parts, unless SHOAL_PROPERTY_CASES says another number
  double share = 1;      ///< of that number
};

/// Checks the seeds part, part + parts, ... until one fails; parts are for ctest to run at the same time. 20 CPU
/// devices with a thread each are there.
void check_property(const Property& property, int part, int parts);

}  // namespace shoal::test
