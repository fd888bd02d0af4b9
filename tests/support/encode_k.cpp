// Encoders of the K-quants and iq4_xs. Each encoder searches for the scales and minima of the sub-blocks, then
// quantises these scales and minima.
#include <algorithm>
#include <cmath>

#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/fit.h"
#include "tests/support/encoders.h"

namespace shoal::test {
namespace {

using namespace quants;

constexpr int kSteps = 9;            // number of candidate scales on each side of (range of x) / high
constexpr float kStepLevels = 0.1f;  // change of (range of x) / scale from one candidate to the next

struct Affine {
  float scale = 0;  ///< >= 0
  float min = 0;    ///< >= 0
};

/// The result of one candidate (inverse_scale, min): the best scale and minimum for the candidate's integers, and the
/// squared error.
struct Trial {
  Affine fit;
  float error;
};

Trial try_affine(const float* x, int n, int high, float inverse_scale, float min) {
  float sx = 0, sq = 0, sqq = 0, sxq = 0, sxx = 0;
  for (int i = 0; i < n; ++i) {
    const float q = static_cast<float>(round_to((x[i] + min) * inverse_scale, 0, high));
    sx += x[i], sq += q, sqq += q * q, sxq += x[i] * q, sxx += x[i] * x[i];
  }
  const float count = static_cast<float>(n);
  const float determinant = count * sqq - sq * sq;
  Affine fit{0, std::max(0.0f, -sx / count)};
  if (determinant > 0) {
    fit.scale = (count * sxq - sx * sq) / determinant;
    fit.min = (fit.scale * sq - sx) / count;
  }
  // Sets the minimum to 0 if the fit makes it negative, or if all integers are equal.
  if (sqq > 0 && sxq > 0 && (fit.min < 0 || determinant <= 0)) fit = {sxq / sqq, 0};
  const float error = sxx + fit.scale * fit.scale * sqq + count * fit.min * fit.min -
                      2 * (fit.scale * sxq - fit.min * sx + fit.scale * fit.min * sq);
  return {fit, error};
}

/// Fits x ~ scale * q - min with integers q in [0, high].
///   {-1, 0, 1, 2} with high 3 -> {1, 1}
Affine fit_affine(const float* x, int n, int high) {
  const auto [lowest, highest] = std::minmax_element(x, x + n);
  const float min = std::max(0.0f, -*lowest);
  const float span = *highest + min;
  if (!(span > 0)) return {0, min};
  Trial best{{span / static_cast<float>(high), min}, INFINITY};
  for (int step = -kSteps; step <= kSteps; ++step) {
    const float levels = static_cast<float>(high) + kStepLevels * static_cast<float>(step);
    const Trial first = try_affine(x, n, high, levels / span, min);
    const Trial second = try_affine(x, n, high, inverse(first.fit.scale), first.fit.min);
    const Trial& better = second.error < first.error ? second : first;
    if (better.fit.scale >= 0 && better.error < best.error) best = better;
  }
  return best.fit;
}

/// Scales or minima of the sub-blocks as integers with a common f16 factor. factor_value is `factor` as f32.
template <int kCount>
struct SuperScales {
  uint16_t factor = 0;
  float factor_value = 0;
  int values[kCount]{};
};

/// Quantises scales >= 0 to integers in [0, high]; the largest scale gets `high`.
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

/// Quantises scales of either sign to integers in [low, -low - 1]. The scale with the largest magnitude gets `low`.
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

/// Fits scale * q - min to each sub-block of `size` elements, with integers q in [0, high].
template <int kCount>
void fit_sub_blocks(const float* x, int size, int high, float (&scales)[kCount], float (&mins)[kCount]) {
  for (int i = 0; i < kCount; ++i) {
    const Affine fit = fit_affine(x + i * size, size, high);
    scales[i] = fit.scale;
    mins[i] = fit.min;
  }
}

void pack_6_bits(const int (&scales)[8], const int (&mins)[8], uint8_t (&packed)[12]) {
  for (int j = 0; j < 4; ++j) {
    packed[j] = static_cast<uint8_t>(scales[j] | scales[j + 4] >> 4 << 6);
    packed[j + 4] = static_cast<uint8_t>(mins[j] | mins[j + 4] >> 4 << 6);
    packed[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | (mins[j + 4] & 15) << 4);
  }
}

void pack_scale(int scale, int j, uint8_t (&packed)[12]) {
  const int bits = scale + 32;
  packed[j % 8] |= static_cast<uint8_t>((bits & 15) << (j / 8 * 4));
  packed[8 + j % 4] |= static_cast<uint8_t>((bits >> 4) << (j / 4 * 2));
}

constexpr auto& kIQ4 = IQ4Levels::kLevels;

/// Index of the level nearest to x. NaN gives the index of the lowest level.
int nearest_iq4(float x) {
  int code = 0;
  for (int i = 0; i < 15; ++i) code += x > static_cast<float>(kIQ4[i] + kIQ4[i + 1]) * 0.5f;
  return code;
}

/// The scale that maps the element with the largest magnitude to the level with the largest magnitude.
float iq4_scale(const float* x) {
  const float extreme = *std::max_element(x, x + 32, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  return extreme / kIQ4[0];
}

void encode_iq4(const float* x, float scale, uint8_t* nibbles) {
  const float factor = inverse(scale);
  for (int j = 0; j < 16; ++j) {
    nibbles[j] = static_cast<uint8_t>(nearest_iq4(x[j] * factor) | nearest_iq4(x[j + 16] * factor) << 4);
  }
}

}  // namespace

void q2_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ2_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[16], mins[16];
    fit_sub_blocks(src, 16, 3, scales, mins);
    const auto s = split_scales(scales, 15), m = split_scales(mins, 15);
    BlockQ2_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    block.min_scale = m.factor;
    for (int j = 0; j < 16; ++j) block.scales[j] = static_cast<uint8_t>(s.values[j] | m.values[j] << 4);
    for (int j = 0; j < kSuperBlock; ++j) {
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[j / 16]));
      const float min = m.factor_value * static_cast<float>(m.values[j / 16]);
      const int q = round_to((src[j] + min) * inverse_scale, 0, 3);
      block.crumbs[j / 128 * 32 + j % 32] |= static_cast<uint8_t>(q << (j / 32 % 4 * 2));
    }
  }
}

void q3_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ3_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[16];
    for (int j = 0; j < 16; ++j) scales[j] = fit_symmetric(src + 16 * j, 16, -4, 3);
    const auto s = split_signed_scales(scales, -32);
    BlockQ3_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    for (int j = 0; j < 16; ++j) pack_scale(s.values[j], j, block.scales);
    for (int j = 0; j < kSuperBlock; ++j) {
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[j / 16]));
      const int q = round_to(src[j] * inverse_scale, -4, 3) + 4;
      block.crumbs[j / 128 * 32 + j % 32] |= static_cast<uint8_t>((q & 3) << (j / 32 % 4 * 2));
      block.high_bits[j % 32] |= static_cast<uint8_t>((q >> 2) << (j / 32));
    }
  }
}

void q4_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ4_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[8], mins[8];
    fit_sub_blocks(src, 32, 15, scales, mins);
    const auto s = split_scales(scales, 63), m = split_scales(mins, 63);
    BlockQ4_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    block.min_scale = m.factor;
    pack_6_bits(s.values, m.values, block.scales);
    for (int j = 0; j < kSuperBlock; ++j) {
      const int sub = j / 32;
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[sub]));
      const float min = m.factor_value * static_cast<float>(m.values[sub]);
      const int q = round_to((src[j] + min) * inverse_scale, 0, 15);
      block.nibbles[sub / 2 * 32 + j % 32] |= static_cast<uint8_t>(q << (sub % 2 * 4));
    }
  }
}

void q5_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ5_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[8], mins[8];
    fit_sub_blocks(src, 32, 31, scales, mins);
    const auto s = split_scales(scales, 63), m = split_scales(mins, 63);
    BlockQ5_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    block.min_scale = m.factor;
    pack_6_bits(s.values, m.values, block.scales);
    for (int j = 0; j < kSuperBlock; ++j) {
      const int sub = j / 32;
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[sub]));
      const float min = m.factor_value * static_cast<float>(m.values[sub]);
      const int q = round_to((src[j] + min) * inverse_scale, 0, 31);
      block.nibbles[sub / 2 * 32 + j % 32] |= static_cast<uint8_t>((q & 15) << (sub % 2 * 4));
      block.high_bits[j % 32] |= static_cast<uint8_t>((q >> 4) << sub);
    }
  }
}

void q6_K_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ6_K*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[16];
    for (int j = 0; j < 16; ++j) scales[j] = fit_symmetric(src + 16 * j, 16, -32, 31);
    const auto s = split_signed_scales(scales, -128);
    BlockQ6_K& block = blocks[i];
    block = {};
    block.scale = s.factor;
    for (int j = 0; j < 16; ++j) block.scales[j] = static_cast<int8_t>(s.values[j]);
    for (int e = 0; e < kSuperBlock; ++e) {
      const float inverse_scale = inverse(s.factor_value * static_cast<float>(s.values[e / 16]));
      const int q = round_to(src[e] * inverse_scale, -32, 31) + 32;
      const int half = e / 128, j = e / 32 % 4, l = e % 32;
      block.nibbles[half * 64 + j % 2 * 32 + l] |= static_cast<uint8_t>((q & 15) << (j / 2 * 4));
      block.crumbs[half * 32 + l] |= static_cast<uint8_t>((q >> 4) << (j * 2));
    }
  }
}

void iq4_xs_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockIQ4_XS*>(dst);
  for (int64_t i = 0; i < n / kSuperBlock; ++i, src += kSuperBlock) {
    float scales[8];
    for (int j = 0; j < 8; ++j) scales[j] = iq4_scale(src + 32 * j);
    const auto s = split_signed_scales(scales, -32);
    BlockIQ4_XS& block = blocks[i];
    block = {};
    block.scale = s.factor;
    for (int j = 0; j < 8; ++j) {
      const int stored = s.values[j] + 32;
      block.low_scales[j / 2] |= static_cast<uint8_t>((stored & 15) << (j % 2 * 4));
      block.high_scales |= static_cast<uint16_t>(stored >> 4 << (2 * j));
      encode_iq4(src + 32 * j, s.factor_value * static_cast<float>(s.values[j]), block.nibbles + 16 * j);
    }
  }
}

}  // namespace shoal::test
