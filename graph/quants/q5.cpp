// q5_0 and q5_1: 32 elements, five bits each.
#include <algorithm>

#include "graph/dtype.h"
#include "graph/quants/blocks.h"
#include "graph/quants/fit.h"
#include "graph/quants/quants.h"

namespace shoal::quants {
namespace {

int high_bit(const uint8_t (&bits)[4], int element) {
  return (bits[element / 8] >> (element % 8) & 1) << 4;
}

template <class Block>
void put(Block& block, int element, int q) {
  block.nibbles[element % 16] |= static_cast<uint8_t>((q & 15) << (element < 16 ? 0 : 4));
  block.high_bits[element / 8] |= static_cast<uint8_t>((q >> 4) << (element % 8));
}

}  // namespace

void q5_0_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ5_0*>(src);
  for (int64_t i = 0; i < n / kBlock; ++i, dst += kBlock) {
    const float scale = f16_to_f32(blocks[i].scale);
    for (int j = 0; j < 16; ++j) {
      const int low = (blocks[i].nibbles[j] & 15) | high_bit(blocks[i].high_bits, j);
      const int high = (blocks[i].nibbles[j] >> 4) | high_bit(blocks[i].high_bits, j + 16);
      dst[j] = static_cast<float>(low - 16) * scale;
      dst[j + 16] = static_cast<float>(high - 16) * scale;
    }
  }
}

void q5_1_to_f32(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ5_1*>(src);
  for (int64_t i = 0; i < n / kBlock; ++i, dst += kBlock) {
    const float scale = f16_to_f32(blocks[i].scale), min = f16_to_f32(blocks[i].min);
    for (int j = 0; j < 16; ++j) {
      const int low = (blocks[i].nibbles[j] & 15) | high_bit(blocks[i].high_bits, j);
      const int high = (blocks[i].nibbles[j] >> 4) | high_bit(blocks[i].high_bits, j + 16);
      dst[j] = static_cast<float>(low) * scale + min;
      dst[j + 16] = static_cast<float>(high) * scale + min;
    }
  }
}

void q5_0_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ5_0*>(dst);
  for (int64_t i = 0; i < n / kBlock; ++i, src += kBlock) {
    blocks[i] = {};
    blocks[i].scale = f32_to_f16(fit_symmetric(src, kBlock, -16, 15));
    const float factor = inverse(f16_to_f32(blocks[i].scale));
    for (int j = 0; j < kBlock; ++j) put(blocks[i], j, round_to(src[j] * factor, -16, 15) + 16);
  }
}

void q5_1_from_f32(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<BlockQ5_1*>(dst);
  for (int64_t i = 0; i < n / kBlock; ++i, src += kBlock) {
    const auto [lowest, highest] = std::minmax_element(src, src + kBlock);
    blocks[i] = {};
    blocks[i].min = f32_to_f16(*lowest);
    const float min = f16_to_f32(blocks[i].min);
    blocks[i].scale = f32_to_f16((*highest - min) / 31);
    const float factor = inverse(f16_to_f32(blocks[i].scale));
    for (int j = 0; j < kBlock; ++j) put(blocks[i], j, round_to((src[j] - min) * factor, 0, 31));
  }
}

}  // namespace shoal::quants
