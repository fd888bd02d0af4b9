// Converts f32 to the types with blocks of 32 elements.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/fit.h"
#include "graph/quants/quants.h"

namespace shoal::quants {
namespace {

/// The element with the largest magnitude.
float extreme_of(const float* x) {
  return *std::max_element(x, x + kBlock, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

template <class Block>
void put(Block& block, const int (&codes)[kBlock]) {
  for (int i = 0; i < 16; ++i) block.nibbles[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
  if constexpr (Block::kBits == 5) {
    uint32_t bits = 0;
    for (int i = 0; i < kBlock; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4) << i;
    for (int i = 0; i < 4; ++i) block.high_bits[i] = static_cast<uint8_t>(bits >> (8 * i));
  }
}

template <class Block>
void encode(const float* x, Block& block) {
  static_assert(!kHasLevels<Block>, "a dtype whose codes index a value table needs an overload of encode()");
  float least = 0;
  int low = -Block::kOffset, high = low + (1 << Block::kBits) - 1;
  if constexpr (Block::kAdds) {
    const auto [lowest, highest] = std::minmax_element(x, x + kBlock);
    block.min = f32_to_f16(*lowest);
    least = f16_to_f32(block.min);
    block.scale = f32_to_f16((*highest - least) / static_cast<float>(high));
  } else {
    block.scale = f32_to_f16(fit_symmetric(x, kBlock, low, high));
  }
  const float factor = inverse(f16_to_f32(block.scale));
  int codes[kBlock];
  for (int i = 0; i < kBlock; ++i) codes[i] = round_to((x[i] - least) * factor, low, high) - low;
  put(block, codes);
}

void encode(const float* x, BlockQ8_0& block) {
  float largest = 0;  // the largest magnitude, or NaN if an element is NaN
  for (int i = 0; i < kBlock; ++i) {
    const float size = std::fabs(x[i]);
    if (size > largest) largest = size;
    if (std::isnan(size)) largest = std::numeric_limits<float>::quiet_NaN();
  }
  block.scale = f32_to_f16(largest / 127);
  const float factor = inverse(f16_to_f32(block.scale));
  for (int i = 0; i < kBlock; ++i) block.values[i] = static_cast<int8_t>(round_to(x[i] * factor, -127, 127));
}

/// The element with the largest magnitude gets the level with the largest magnitude. Other elements get the nearest
/// level, and NaN gets the lowest level.
void encode(const float* x, BlockIQ4_NL& block) {
  constexpr auto& kLevels = BlockIQ4_NL::kLevels;
  block.scale = f32_to_f16(extreme_of(x) / kLevels[0]);
  const float factor = inverse(f16_to_f32(block.scale));
  int codes[kBlock] = {};
  for (int i = 0; i < kBlock; ++i) {
    for (int j = 0; j < 15; ++j) codes[i] += x[i] * factor > static_cast<float>(kLevels[j] + kLevels[j + 1]) * 0.5f;
  }
  put(block, codes);
}

constexpr auto& kMXFP4 = BlockMXFP4::kLevels;

/// The code of the nearest level; 0 for zeros and NaN.
int nearest_mxfp4(float x) {
  const float magnitude = std::fabs(x);
  int code = 0;
  for (int i = 0; i < 7; ++i) code += magnitude > static_cast<float>(kMXFP4[i] + kMXFP4[i + 1]) * 0.5f;
  return code > 0 && x < 0 ? code + 8 : code;
}

/// x / 2^(scale - 128). Multiplies twice, because 2^(128 - scale) may exceed the largest float.
float in_units(float x, int scale) {
  return x * std::bit_cast<float>(static_cast<uint32_t>(254 - scale) << 23) * 2.0f;
}

/// Squared error with this scale, in units of the squared scale.
float error_with(const float* x, int scale) {
  float sum = 0;
  for (int i = 0; i < kBlock; ++i) {
    const float wanted = in_units(x[i], scale), difference = wanted - static_cast<float>(kMXFP4[nearest_mxfp4(wanted)]);
    sum += difference * difference;
  }
  return sum;
}

/// The smallest scale with which no element exceeds the largest level. Half of that scale clips the largest elements
/// but doubles the resolution. The function returns the half scale if its error is smaller than the error of the full
/// scale.
int mxfp4_scale(const float* x) {
  uint32_t largest = 0;  // bits of the largest magnitude
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  // The largest level is 12 = 1.5 * 2^3.
  const int whole = static_cast<int>(largest >> 23) - 2 + ((largest & 0x7fffffu) > 0x400000u ? 1 : 0);
  if (whole <= 0) return 0;
  const int scale = std::min(whole, 253);  // for NaN, `whole` may exceed 253
  return error_with(x, scale - 1) < 4 * error_with(x, scale) ? scale - 1 : scale;
}

void encode(const float* x, BlockMXFP4& block) {
  const int scale = mxfp4_scale(x);
  block.scale = static_cast<uint8_t>(scale);
  int codes[kBlock];
  for (int i = 0; i < kBlock; ++i) codes[i] = nearest_mxfp4(in_units(x[i], scale));
  put(block, codes);
}

}  // namespace

#define SHOAL_QUANTIZED_32(id, name, ...)                                         \
  void name##_from_f32(const float* src, void* dst, int64_t n) {                  \
    auto* blocks = static_cast<Block##id*>(dst);                                  \
    for (int64_t i = 0; i < n / kBlock; ++i) encode(src + i * kBlock, blocks[i]); \
  }
#include "graph/dtypes.def"

}  // namespace shoal::quants
