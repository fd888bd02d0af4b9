// Random graphs for property tests: 5-40 nodes over all ops, with views of views, cache writes, broadcasting and
// quantised weights, and a random split state for every persistent leaf. Every other seed has f32 values only, so that
// nothing but the order of sums may show. A case is plain data (graph text plus split states), so that it can be
// printed, shrunk and run again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"
#include "tests/support/random_leaves.h"

namespace shoal::test {

/// How far results may be apart: sums in another order, and values stored in f16, bf16 or quantised on the way.
constexpr double kTight = 1e-4, kRounded = 4e-2;

struct RandomCase {
  uint64_t seed = 0;
  int ranks = 2;
  std::string graph;                            ///< text form, see graph/text.h
  std::map<std::string, meta::Layout> layouts;  ///< of the persistent leaves; absent = mirrored
  /// Where the callback answers in this form: lengths that make the same layout.
  std::map<std::string, std::vector<std::vector<int64_t>>> segments;
  double tolerance = kTight;  ///< relative, see difference() in case_leaves.h; 0 = equal
  bool whole = false;         ///< floats of leaves are small whole numbers
};

RandomCase random_case(uint64_t seed);
/// Text that says all of it, for failure messages.
std::string to_string(const RandomCase& one);

}  // namespace shoal::test
