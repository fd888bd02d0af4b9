// Random layouts and values for the leaves of a graph. The name of a leaf determines the range of its values. The
// number in the name of an integer leaf sets the bounds of this range:
// - ids8.*: values in [0, 8)
// - slots8.*: distinct values in [0, 8)
// - pos8.*: ascending values in [0, 8)
// - texts9.*: values in [-3, 6)
// - ints8.*: integers between -8 and 8
// - div.*: floats in [1, 2]
// - other floats: values in [-1, 1]
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph/tensor.h"
#include "meta/layout/layout.h"
#include "meta/plan/constraints.h"

namespace shoal::test {

/// A random legal layout for a leaf.
meta::Layout random_layout(std::mt19937_64& rng, const Tensor& leaf, int ranks, bool allow_partial);

/// A random text for reshard() of `x`, without partial sums.
std::string random_reshard(std::mt19937_64& rng, const Tensor& x, int ranks);

/// A random requirement or hint for about one of four tensors; nullopt for the results of writes to caches and for
/// reshard nodes. `allow_partial` is as in random_layout().
std::optional<meta::LayoutConstraint> random_constraint(std::mt19937_64& rng, const Tensor& tensor, int ranks,
                                                        bool allow_partial);

/// A layout in which each expert has one random owner. All owners are at or after a random first rank, so the first
/// ranks often own no experts.
meta::Layout whole_experts(std::mt19937_64& rng, int64_t experts, int ranks);

/// Random segments that the split-state callback can return for an axis. Each segment has one length per rank. All
/// lengths are multiples of `unit`, and their sum is `length`.
std::vector<std::vector<int64_t>> random_segments(std::mt19937_64& rng, int64_t length, int64_t unit, int segments,
                                                  int ranks);

/// The bytes of a leaf. These bytes depend only on the seed and on the leaf's name, dtype and shape.
std::vector<std::byte> leaf_data(const Tensor& leaf, uint64_t seed);

}  // namespace shoal::test
