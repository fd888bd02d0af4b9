// The second level of the K types: a super-block's small scales (and minima) as integers times one f16 factor.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "graph/dtype.h"
#include "graph/quants/fit.h"

namespace shoal::quants {

/// Integers times an f16 factor; factor_value is the f32 value of `factor`.
template <int kCount>
struct SuperScales {
  uint16_t factor = 0;
  float factor_value = 0;
  int values[kCount]{};
};

/// Integers in [0, high] for scales >= 0; the largest scale gets `high`.
///   {0.5, 0.25} with high 63 -> factor 0.5 / 63, values {63, 32}
template <int kCount>
SuperScales<kCount> split_scales(const float (&scales)[kCount], int high) {
  SuperScales<kCount> result;
  const float largest = *std::max_element(scales, scales + kCount);
  result.factor = f32_to_f16(largest / static_cast<float>(high));
  result.factor_value = f16_to_f32(result.factor);
  const float inverse_factor = inverse(result.factor_value);
  for (int i = 0; i < kCount; ++i) result.values[i] = round_to(scales[i] * inverse_factor, 0, high);
  return result;
}

/// Integers in [low, -low - 1] for scales of either sign; the scale with the largest magnitude gets `low`.
template <int kCount>
SuperScales<kCount> split_signed_scales(const float (&scales)[kCount], int low) {
  SuperScales<kCount> result;
  const float extreme =
      *std::max_element(scales, scales + kCount, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  result.factor = f32_to_f16(extreme / static_cast<float>(low));
  result.factor_value = f16_to_f32(result.factor);
  const float inverse_factor = inverse(result.factor_value);
  for (int i = 0; i < kCount; ++i) result.values[i] = round_to(scales[i] * inverse_factor, low, -low - 1);
  return result;
}

/// Fits every sub-block of `size` elements of a super-block by scale * q - min, q in [0, high].
template <int kCount>
void fit_sub_blocks(const float* x, int size, int high, float (&scales)[kCount], float (&mins)[kCount]) {
  for (int i = 0; i < kCount; ++i) {
    const Affine fit = fit_affine(x + i * size, size, high);
    scales[i] = fit.scale;
    mins[i] = fit.min;
  }
}

/// Two 6-bit numbers per sub-block in 12 bytes, as in BlockQ4_K.
struct ScaleAndMin {
  int scale, min;
};
inline ScaleAndMin unpack_6_bits(const uint8_t (&packed)[12], int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4};
}
inline void pack_6_bits(const int (&scales)[8], const int (&mins)[8], uint8_t (&packed)[12]) {
  for (int j = 0; j < 4; ++j) {
    packed[j] = static_cast<uint8_t>(scales[j] | scales[j + 4] >> 4 << 6);
    packed[j + 4] = static_cast<uint8_t>(mins[j] | mins[j + 4] >> 4 << 6);
    packed[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | (mins[j + 4] & 15) << 4);
  }
}

}  // namespace shoal::quants
