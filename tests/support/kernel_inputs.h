// Inputs for tests of CPU kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace shoal::test {

/// Memory with an alignment of 64 bytes, as panels and packed groups require.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : storage_(size + 64) {}
  std::byte* data() { return storage_.data() + (64 - reinterpret_cast<uintptr_t>(storage_.data()) % 64) % 64; }

 private:
  std::vector<std::byte> storage_;
};

/// Normally distributed numbers, which depend only on the seed. The mean is not zero, so that a sum is larger than its
/// rounding error.
inline std::vector<float> random_floats(int64_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.1f, 1.0f);
  std::vector<float> values(n);
  for (float& v : values) v = normal(engine);
  return values;
}

/// A vector of k elements. At the index of each outlier, the vector contains the outlier. All other elements are zero.
/// `column` is a column of words (devices/cpu/kernels/column.h).
inline std::vector<float> word_outliers(const std::byte* column, int64_t k) {
  const std::byte* at = column + (k + 31) / 32 * (32 * 2 + 4);
  int32_t count, place;
  std::memcpy(&count, at, 4);
  std::vector<float> values(k);
  for (at += 4; count > 0; --count, at += 8) {
    std::memcpy(&place, at, 4);
    std::memcpy(&values.at(place), at + 4, 4);
  }
  return values;
}

}  // namespace shoal::test
