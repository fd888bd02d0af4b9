// Random graphs for property tests. A graph has 5 to 40 nodes of all ops, with views of views, cache writes,
// broadcasting and quantised weights. Every weight and cache has a random split state. In every second case, some
// inputs and nodes have random constraints. Graphs from even seeds store floats only as f32, so only the order of
// summation can change their results. A case is plain data (graph text and split states), so it can be printed, shrunk
// and run again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"
#include "meta/plan/constraints.h"
#include "tests/support/random_leaves.h"

namespace shoal::test {

/// Tolerances for differences between results. kTight is used if only the order of sums differs. kRounded is used if
/// intermediate values are stored in f16, bf16 or quantised types.
constexpr double kTight = 1e-4, kRounded = 4e-2;

struct RandomCase {
  uint64_t seed = 0;
  int ranks = 2;
  std::string graph;                            ///< the graph as text (graph/text.h)
  std::map<std::string, meta::Layout> layouts;  ///< layouts of weights and caches; the default is mirrored
  /// Some leaves have segments that give the same layout as `layouts`. For these leaves, the split-state callback
  /// returns the segments instead of the layout.
  std::map<std::string, std::vector<std::vector<int64_t>>> segments;
  double tolerance = kTight;  ///< for difference() in case_leaves.h; if 0, results must be equal
  bool whole = false;         ///< whether the float values of leaves are small whole numbers
  /// Constraints of inputs and nodes. If the devices belong to several processes, requirements for outputs become
  /// hints.
  std::map<std::string, meta::LayoutConstraint> constraints = {};
};

RandomCase random_case(uint64_t seed);
/// The whole case as text, for failure messages.
std::string to_string(const RandomCase& one);

}  // namespace shoal::test
