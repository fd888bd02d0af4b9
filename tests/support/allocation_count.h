// Counts the heap allocations of the whole program through operator new, for tests of paths that must not allocate.
#pragma once

#include <cstdint>

namespace shoal::test {

/// False where the compiler's sanitizer brings an operator new of its own (Clang): then nothing is counted.
bool counts_allocations();
/// Calls of operator new since the program began, on all threads.
int64_t allocation_count();

}  // namespace shoal::test
