// Counts the calls of operator new in the whole program. Tests use this number to check that code does not allocate.
#pragma once

#include <cstdint>

namespace shoal::test {

/// Whether allocations are counted. Under AddressSanitizer and ThreadSanitizer, allocations are not counted.
bool counts_allocations();
/// Number of calls of operator new in all threads since the program started.
int64_t allocation_count();

}  // namespace shoal::test
