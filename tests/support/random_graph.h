// Random graphs for property tests: 5-40 nodes of all ops, with views of views, cache writes, broadcasting and
// quantised weights. Every persistent leaf has a random split state. Every other seed has only f32 values, so that only
// the order of sums affects results. A case is plain data (graph text and split states): it can be printed, shrunk and
// run again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"
#include "tests/support/random_leaves.h"

namespace shoal::test {

/// Allowed differences between results: kTight if only the order of sums differs, kRounded if intermediate values are
/// stored in f16, bf16 or quantised types.
constexpr double kTight = 1e-4, kRounded = 4e-2;

struct RandomCase {
  uint64_t seed = 0;
  int ranks = 2;
  std::string graph;                            ///< text form, see graph/text.h
  std::map<std::string, meta::Layout> layouts;  ///< layouts of persistent leaves; leaves without an entry are mirrored
  /// For some leaves: segments that give the same layout. The split-state callback returns them instead of the layout.
  std::map<std::string, std::vector<std::vector<int64_t>>> segments;
  double tolerance = kTight;  ///< relative, see difference() in case_leaves.h; 0: results must be equal
  bool whole = false;         ///< whether the floats of leaves are small whole numbers
};

RandomCase random_case(uint64_t seed);
/// The whole case as text, for failure messages.
std::string to_string(const RandomCase& one);

}  // namespace shoal::test
