// Computes shards element by element. This code is independent of meta/, which computes with runs of elements.
#pragma once

#include <vector>

#include "meta/layout/layout.h"

namespace shoal::test {

/// Flat global indices of a rank's elements, in the order of the rank's shard. For mirrored and Partial layouts,
/// returns the indices of all elements.
std::vector<int64_t> shard_elements(const Shape& shape, const meta::Layout& layout, int rank);

}  // namespace shoal::test
