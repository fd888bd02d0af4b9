// mxfp4: 32 floats of four bits (a sign, two of the exponent, one of the mantissa) times a power of two.
#include <algorithm>
#include <bit>
#include <cmath>

#include "graph/quants/blocks.h"
#include "graph/quants/quants.h"

namespace shoal::quants {
namespace {

constexpr auto& kMXFP4 = BlockMXFP4::kLevels;

/// 2^(scale - 128); the two smallest are denormal.
float power_of(uint8_t scale) {
  return std::bit_cast<float>(scale < 2 ? 0x200000u << scale : (scale - 1u) << 23);
}

/// The nearest level's code, of zeros and NaN 0.
int nearest_mxfp4(float x) {
  const float magnitude = std::fabs(x);
  int code = 0;
  for (int i = 0; i < 7; ++i) code += magnitude > static_cast<float>(kMXFP4[i] + kMXFP4[i + 1]) * 0.5f;
  return code > 0 && x < 0 ? code + 8 : code;
}

/// x / 2^(scale - 128). In two steps: the power may be larger than the largest float.
float scaled(float x, int scale) {
  return x * std::bit_cast<float>(static_cast<uint32_t>(254 - scale) << 23) * 2.0f;
}

/// Squared error with this scale, in units of the scale's square.
float error_with(const float* x, int scale) {
  float sum = 0;
  for (int i = 0; i < kBlock; ++i) {
    const float wanted = scaled(x[i], scale), difference = wanted - static_cast<float>(kMXFP4[nearest_mxfp4(wanted)]);
    sum += difference * difference;
  }
  return sum;
}

/// The smallest scale with which no element lies above the largest level; or the half of it, by which the largest are
/// cut off and the others are twice as near, where that is better.
int mxfp4_scale(const float* x) {
  uint32_t largest = 0;  // as bits: by magnitude
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  // 12 = 1.5 * 2^3.
  const int whole = static_cast<int>(largest >> 23) - 2 + ((largest & 0x7fffffu) > 0x400000u ? 1 : 0);
  if (whole <= 0) return 0;
  const int scale = std::min(whole, 253);  // NaN would give more
  return error_with(x, scale - 1) < 4 * error_with(x, scale) ? scale - 1 : scale;
}

}  // namespace

void mxfp4_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockMXFP4*>(src);
  for (int64_t i = 0; i < n / kBlock; ++i, dst += kBlock) {
    const float scale = power_of(blocks[i].scale);
    for (int j = 0; j < 16; ++j) {
      dst[j] = static_cast<float>(kMXFP4[blocks[i].nibbles[j] & 15]) * scale;
      dst[j + 16] = static_cast<float>(kMXFP4[blocks[i].nibbles[j] >> 4]) * scale;
    }
  }
}

void mxfp4_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockMXFP4*>(dst);
  for (int64_t i = 0; i < n / kBlock; ++i, src += kBlock) {
    const int scale = mxfp4_scale(src);
    blocks[i].scale = static_cast<uint8_t>(scale);
    for (int j = 0; j < 16; ++j) {
      const int low = nearest_mxfp4(scaled(src[j], scale)), high = nearest_mxfp4(scaled(src[j + 16], scale));
      blocks[i].nibbles[j] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

}  // namespace shoal::quants
