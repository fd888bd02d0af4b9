// Bitwise comparison of floating-point numbers, for tests of results that must not depend on the batch.
#pragma once

#include <cstring>
#include <vector>

namespace shoal::test {

/// Whether both vectors have the same bits. Unlike ==, the comparison distinguishes 0 from -0 and accepts equal NaNs.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace shoal::test
