// Computes shards by brute force, element by element. Shares no code with meta/, which computes with runs of elements.
#pragma once

#include <vector>

#include "meta/layout/layout.h"

namespace shoal::test {

/// Flat global indices of a rank's elements, in the order of its shard. For Mirrored and Partial, these are all
/// elements.
std::vector<int64_t> shard_elements(const Shape& shape, const meta::Layout& layout, int rank);

}  // namespace shoal::test
