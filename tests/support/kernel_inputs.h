// What tests give to kernels of CPU devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace shoal::test {

/// Memory that begins at a multiple of 64, as panels and packed groups do.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size) : storage_(size + 64) {}
  std::byte* data() { return storage_.data() + (64 - reinterpret_cast<uintptr_t>(storage_.data()) % 64) % 64; }

 private:
  std::vector<std::byte> storage_;
};

/// Normal numbers, the same for the same seed; a mean that is not zero, so that sums are not lost in rounding.
inline std::vector<float> random_floats(int64_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.1f, 1.0f);
  std::vector<float> values(n);
  for (float& v : values) v = normal(engine);
  return values;
}

/// The outliers of a column of words (devices/cpu/kernels/column.h) at their places among k zeros.
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
