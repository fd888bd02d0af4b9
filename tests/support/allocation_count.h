// Counts the heap allocations of the whole program through operator new, to test code paths that must not allocate.
#pragma once

#include <cstdint>

namespace shoal::test {

/// Whether allocations are counted. False if the compiler's sanitizer has its own operator new (Clang).
bool counts_allocations();
/// Number of calls of operator new on all threads since the program started.
int64_t allocation_count();

}  // namespace shoal::test
