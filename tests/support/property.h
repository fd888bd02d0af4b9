// The main loop of property tests: generates random cases from seeds and reports failures.
//
//   SHOAL_PROPERTY_CASES=N   number of cases in all parts together (default: set by the test)
//   SHOAL_PROPERTY_RANKS=N   only cases with at most N ranks (default: all), for a plug-in with few devices
//   SHOAL_PROPERTY_SEED=S    only the case of seed S
//
// A failing case is shrunk and printed as text with its seed. A case that ends the program is printed without
// shrinking. A fault, an abort or a run time of more than five minutes ends the program.
#pragma once

#include <functional>
#include <string>

#include "tests/support/random_graph.h"

namespace shoal::test {

struct Property {
  std::function<RandomCase(uint64_t seed)> draw;
  /// Returns "" if the case passes, otherwise a description of the error.
  std::function<std::string(const RandomCase&)> check;
  int64_t cases = 2000;  ///< number of cases in all parts together, if SHOAL_PROPERTY_CASES is not set
  double share = 1;      ///< fraction of the cases to run
};

/// Checks the seeds part, part + parts, part + 2 * parts, ... up to the first failure. So ctest can run the parts
/// concurrently. The test program has 20 CPU devices with one thread each.
void check_property(const Property& property, int part, int parts);

}  // namespace shoal::test
