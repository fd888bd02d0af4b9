// Random layouts and values for the leaves of a graph.
//
// A leaf's name determines its values: ids8.* are values in [0, 8); slots8.* distinct values in [0, 8); pos8.*
// ascending values in [0, 8); texts9.* values in [-3, 6); ints8.* integers between -8 and 8; div.* floats in [1, 2];
// other floats are in [-1, 1].
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "graph/tensor.h"
#include "meta/layout/layout.h"

namespace shoal::test {

/// A random legal layout for a leaf.
meta::Layout random_layout(std::mt19937_64& rng, const Tensor& leaf, int ranks, bool allow_partial);

/// A layout that assigns whole experts to the ranks, beginning with a random rank. The first ranks often have no
/// experts.
meta::Layout whole_experts(std::mt19937_64& rng, int64_t experts, int ranks);

/// A random result of the split-state callback for an axis: segments with one length per rank. All lengths are
/// multiples of `unit` and add up to `length`.
std::vector<std::vector<int64_t>> random_segments(std::mt19937_64& rng, int64_t length, int64_t unit, int segments,
                                                  int ranks);

/// The bytes of a leaf, determined by its name, dtype, shape and the seed.
std::vector<std::byte> leaf_data(const Tensor& leaf, uint64_t seed);

}  // namespace shoal::test
