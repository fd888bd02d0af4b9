// Random graphs of small whole numbers. No sum, product or cast is rounded, and the order of additions has no effect.
// Writes to f16 and bf16 caches round large numbers to other whole numbers. So all devices must give the same bits. The
// graphs have few shapes, and each value has many users. So some nodes use an input on one rank, and other nodes use
// the same input on all ranks. The graphs contain views of views, axes of length 1, and caches that nodes read and
// write.
#pragma once

#include <cstdint>

#include "tests/support/random_graph.h"

namespace shoal::test {

/// The case of this seed. Its `tolerance` is 0 and its `whole` is true.
RandomCase integer_case(uint64_t seed);

}  // namespace shoal::test
