// Random layouts and values for the leaves of a graph.
//
// Names of leaves say what they may hold: ids8.* values in [0, 8); slots8.* distinct values in [0, 8); pos8.* ascending
// values in [0, 8); texts9.* values in [-3, 6); ints8.* integers between -8 and 8. div.* are floats in [1, 2]; other
// floats lie in [-1, 1].
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "graph/tensor.h"
#include "meta/layout/layout.h"

namespace shoal::test {

/// A random legal layout for a leaf.
meta::Layout random_layout(std::mt19937_64& rng, const Tensor& leaf, int ranks, bool allow_partial);

/// Whole experts on the ranks from a random one on: the first ranks often have none.
meta::Layout whole_experts(std::mt19937_64& rng, int64_t experts, int ranks);

/// A random answer of the split-state callback for an axis: segments, each with one length per rank, all multiples of
/// `unit`, that add up to `length`.
std::vector<std::vector<int64_t>> random_segments(std::mt19937_64& rng, int64_t length, int64_t unit, int segments,
                                                  int ranks);

/// Bytes for a leaf, a function of its name, dtype, shape and the seed alone.
std::vector<std::byte> leaf_data(const Tensor& leaf, uint64_t seed);

}  // namespace shoal::test
