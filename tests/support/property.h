// The main loop of property tests: generates random cases by seed and reports failures.
//
//   SHOAL_PROPERTY_CASES=N   number of cases in all parts (default: set by the test)
//   SHOAL_PROPERTY_RANKS=N   only the cases on at most N ranks (default: all), for a plug-in with few devices
//   SHOAL_PROPERTY_SEED=S    only the case with this seed; failures print the seed
//
// A failing case is shrunk and printed as text with its seed. A case that ends the program (a fault, an abort, or no
// end within five minutes) is printed unshrunk.
#pragma once

#include <functional>
#include <string>

#include "tests/support/random_graph.h"

namespace shoal::test {

struct Property {
  std::function<RandomCase(uint64_t seed)> draw;
  /// Returns "" or a description of the error.
  std::function<std::string(const RandomCase&)> check;
  int64_t cases = 2000;  ///< number of cases in all parts together; SHOAL_PROPERTY_CASES overrides it
  double share = 1;      ///< fraction of the cases to run
};

/// Checks the seeds part, part + parts, ... until one fails, so that ctest can run parts concurrently. 20 CPU devices
/// with one thread each are available.
void check_property(const Property& property, int part, int parts);

}  // namespace shoal::test
