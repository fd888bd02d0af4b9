// Random graphs of small whole numbers, on which all devices must agree to the last bit: no sum, product or conversion
// rounds, in any order. The graphs have few shapes and many users of each value, so that some nodes use an input on one
// rank and other nodes use the same input on all ranks. They contain views of views, axes of length 1, and caches that
// are read and written.
#pragma once

#include <cstdint>

#include "tests/support/random_graph.h"

namespace shoal::test {

/// A case with `tolerance` 0 and `whole` true, determined by the seed.
RandomCase integer_case(uint64_t seed);

}  // namespace shoal::test
