// Random graphs for property tests: 5-40 nodes over all ops, with views of views, cache writes, broadcasting and
// quantised weights, and a random split state for every persistent leaf. Every other seed has f32 values only, so that
// nothing but the order of sums may show. A case is plain data (graph text plus split
// states), so that it can be printed, shrunk and run again.
//
// Names of integer leaves say what they may hold: ids8.* values in [0, 8); slots8.* distinct values in [0, 8);
// pos8.* ascending values in [0, 8). div.* are floats in [1, 2]; other floats lie in [-1, 1].
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "graph/graph.h"
#include "meta/layout.h"

namespace shoal::test {

/// How far results may be apart: sums in another order, and values stored in f16, bf16 or quantised on the way.
constexpr double kTight = 1e-4, kRounded = 4e-2;

struct RandomCase {
  uint64_t seed = 0;
  int ranks = 2;
  std::string graph;                            ///< text form, see graph/text.h
  std::map<std::string, meta::Layout> layouts;  ///< of the persistent leaves; absent = mirrored
  double tolerance = kTight;                    ///< relative, see difference() in run_case.h; 0 = equal
};

RandomCase random_case(uint64_t seed);
/// Text that says all of it, for failure messages.
std::string to_string(const RandomCase& one);

/// A random legal layout for a leaf.
meta::Layout random_layout(std::mt19937_64& rng, const Tensor& leaf, int ranks, bool allow_partial);

/// Bytes for a leaf, a function of its name, dtype, shape and the seed alone.
std::vector<std::byte> leaf_data(const Tensor& leaf, uint64_t seed);

}  // namespace shoal::test
