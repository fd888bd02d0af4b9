// Computes shards element by element, for checks. This code is independent of meta/layout/shards.h and of plans, which
// compute with runs of elements.
#pragma once

#include <vector>

#include "meta/layout/layout.h"

namespace shoal::meta {

/// Flat global indices of a rank's elements, in the order of the rank's shard. For mirrored and Partial layouts,
/// returns the indices of all elements.
std::vector<int64_t> shard_elements(const Shape& shape, const Layout& layout, int rank);

}  // namespace shoal::meta
