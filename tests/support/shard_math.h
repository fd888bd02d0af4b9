// Brute-force answers about shards, element by element, independent of meta/'s arithmetic on runs.
#pragma once

#include <vector>

#include "meta/layout/layout.h"

namespace shoal::test {

/// Flat global element numbers of a rank's shard, in the order of the shard. Mirrored and Partial: all of them.
std::vector<int64_t> shard_elements(const Shape& shape, const meta::Layout& layout, int rank);

}  // namespace shoal::test
