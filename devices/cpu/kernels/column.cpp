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

}  // namespace

size_t column_bytes(int64_t k) {
  return static_cast<size_t>(k + k / 8 + k / 4 + k / 4 + 63) / 64 * 64;
}

void quantize(const float* x, std::byte* column, int64_t k) {
  const Column to = column_at(column, k);
  auto* values = const_cast<int8_t*>(to.values);
  auto* scales = const_cast<float*>(to.scales);
  auto* sums = const_cast<float*>(to.sums);
  auto* starts = const_cast<int32_t*>(to.starts);
  for (int64_t block = 0; block < k / 32; ++block, x += 32, values += 32) {
    const float largest = largest_of(x);
    scales[block] = largest < kTiny ? 0.0f : largest / 127.0f;
    const float inverse = largest < kTiny ? 0.0f : 127.0f / largest;
    // Adding 1.5 * 2^23 rounds to an integer, to even, in the low bits.
    const F32 shift = splat(12582912.0f);
    int32_t integers[32];
    SHOAL_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const F32 shifted = multiply_add(load<F32>(x + i * kLanes), splat(inverse), shift);
      store(integers + i * kLanes, bits_as<I32>(shifted) - bits_as<I32>(shift));
    }
    for (int half = 0; half < 2; ++half) {
      int32_t sum = 0;
      for (int i = 0; i < 16; ++i) {
        values[half * 16 + i] = static_cast<int8_t>(integers[half * 16 + i]);
        sum += values[half * 16 + i];
      }
      sums[block * 2 + half] = scales[block] * static_cast<float>(sum);
      starts[block * 2 + half] = -kWeightBias * sum;
    }
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
