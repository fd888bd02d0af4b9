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

/// x + kRound - kRound is x rounded to an integer, to even; the integer is in the low bits of x + kRound.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

struct Sums {
  int32_t values = 0, fine = 0;
};

/// The bytes of 16 elements, and their sums.
Sums split_16(const float* x, float inverse, int8_t* values, int8_t* fine) {
  int32_t whole[16], rest[16];
  SHOAL_UNROLL
  for (int i = 0; i < 16; i += kLanes) {
    const F32 scaled = load<F32>(x + i) * splat(inverse);
    const F32 shifted = scaled + splat(kRound);
    const F32 left = multiply_add(scaled - (shifted - splat(kRound)), splat(256.0f), splat(kRound));
    store(whole + i, bits_as<I32>(shifted) - bits_as<I32>(splat(kRound)));
    store(rest + i, bits_as<I32>(left) - bits_as<I32>(splat(kRound)));
  }
  Sums sums;
  for (int i = 0; i < 16; ++i) {
    // -128 to 128; quad_dot takes no -128.
    const int32_t limited = rest[i] < -127 ? -127 : (rest[i] > 127 ? 127 : rest[i]);
    values[i] = static_cast<int8_t>(whole[i]);
    fine[i] = static_cast<int8_t>(limited);
    sums.values += values[i];
    sums.fine += fine[i];
  }
  return sums;
}

float exact_sum(float scale, Sums sums) {
  return scale * (static_cast<float>(sums.values) + static_cast<float>(sums.fine) / 256.0f);
}

}  // namespace

size_t column_bytes(int64_t k) {
  // Two bytes an element; four numbers per 32 elements and three per 16.
  return static_cast<size_t>(2 * k + k / 32 * 10 * 4 + 63) / 64 * 64;
}

void quantize(const float* x, std::byte* column, int64_t k) {
  const NewColumn to = new_column_at(column, k);
  for (int64_t part = 0; part < k / 32; ++part) {
    const float largest = largest_of(x + 32 * part);
    const float scale = largest < kTiny ? 0.0f : largest / 127.0f;
    const float inverse = largest < kTiny ? 0.0f : 127.0f / largest;
    Sums all;
    for (int64_t half = 2 * part; half < 2 * part + 2; ++half) {
      const Sums sums = split_16(x + 16 * half, inverse, to.values + 16 * half, to.fine + 16 * half);
      to.half_sums[half] = scale * static_cast<float>(sums.values);
      to.fine_half_sums[half] = exact_sum(scale, sums);
      to.half_starts[half] = -kWeightBias * sums.values;
      all = {all.values + sums.values, all.fine + sums.fine};
    }
    to.scales[part] = scale;
    to.sums[part] = scale * static_cast<float>(all.values);
    to.fine_sums[part] = exact_sum(scale, all);
    to.starts[part] = -kWeightBias * all.values;
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
