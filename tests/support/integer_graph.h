// Random graphs of small whole numbers, on which every device has to agree to the last bit: no sum, product or
// conversion in them rounds, in whatever order it is done. Few shapes and many users of each value, so that inputs are
// used by some ranks here and by all of them there; views of views, axes of length 1, caches read and written.
#pragma once

#include <cstdint>

#include "tests/support/random_graph.h"

namespace shoal::test {

/// `tolerance` is 0 and `whole` true. A function of the seed.
RandomCase integer_case(uint64_t seed);

}  // namespace shoal::test
