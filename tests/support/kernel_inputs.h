// What tests give to kernels of CPU devices.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace shoal::test
