// Counts the heap allocations of the whole program through operator new, for tests of paths that must not allocate.
#pragma once

#include <cstdint>

namespace shoal::test {

/// Calls of operator new since the program began, on all threads.
int64_t allocation_count();

}  // namespace shoal::test
