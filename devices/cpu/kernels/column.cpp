#include "devices/cpu/kernels/column.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int kVectors = 32 / kLanes;

/// Largest magnitude of 32 elements; NaN when one of them is NaN (as integers, NaN is the largest of all).
float largest_of(const float* x) {
  I32 largest = {};
  SHOAL_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const I32 magnitude = load<I32>(x + i * kLanes) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  int32_t lanes[kLanes], result = 0;
  store(lanes, largest);
  for (int i = 0; i < kLanes; ++i) result = lanes[i] > result ? lanes[i] : result;
  float value;
  __builtin_memcpy(&value, &result, sizeof value);
  return value;
}

/// Numbers below this are zero: the inverse of their scale would overflow.
constexpr float kTiny = 1e-30f;

/// Rounds x * inverse for 16 elements; returns the sum of the integers.
int32_t round_16(const float* x, float inverse, int8_t* to) {
  // Adding 1.5 * 2^23 rounds to an integer, to even, in the low bits.
  const F32 shift = splat(12582912.0f);
  int32_t integers[16];
  SHOAL_UNROLL
  for (int i = 0; i < 16; i += kLanes) {
    const F32 shifted = multiply_add(load<F32>(x + i), splat(inverse), shift);
    store(integers + i, bits_as<I32>(shifted) - bits_as<I32>(shift));
  }
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    to[i] = static_cast<int8_t>(integers[i]);
    sum += to[i];
  }
  return sum;
}

}  // namespace

size_t column_bytes(int64_t k) {
  // Behind the bytes, three numbers per 32 elements and two per 16.
  return static_cast<size_t>(k + k / 32 * 7 * 4 + 63) / 64 * 64;
}

void quantize(const float* x, std::byte* column, int64_t k) {
  const NewColumn to = new_column_at(column, k);
  for (int64_t block = 0; block < k / 32; ++block) {
    const float largest = largest_of(x + 32 * block);
    const float scale = largest < kTiny ? 0.0f : largest / 127.0f;
    const float inverse = largest < kTiny ? 0.0f : 127.0f / largest;
    int32_t sums[2];
    for (int half = 0; half < 2; ++half) {
      const int64_t begin = 32 * block + 16 * half;
      sums[half] = round_16(x + begin, inverse, to.values + begin);
      to.half_sums[2 * block + half] = scale * static_cast<float>(sums[half]);
      to.half_starts[2 * block + half] = -kWeightBias * sums[half];
    }
    to.scales[block] = scale;
    to.sums[block] = scale * static_cast<float>(sums[0] + sums[1]);
    to.starts[block] = -kWeightBias * (sums[0] + sums[1]);
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
