#include "tests/support/encoders.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "graph/quants/blocks.h"

namespace shoal::test {
namespace {

using namespace quants;

template <class Block>
void set_scale(Block& block, float scale) {
  block.scale = f32_to_f16(scale);
  // A minimum is drawn as the scale is: on the average it is in the middle of the codes.
  if constexpr (requires { block.min_scale; }) {
    block.min_scale = f32_to_f16(scale * static_cast<float>((1 << Block::kBits) - 1) / 2);
  }
}
/// A nibble of the scale in each of four words.
void set_scale(BlockIQ1_M& block, float scale) {
  const unsigned half = f32_to_f16(scale);
  for (int i = 0; i < 4; ++i) {
    block.scales[i] = static_cast<uint16_t>((block.scales[i] & 0xfff) | (half >> 4 * i & 15) << 12);
  }
}
/// Bytes of seven bits that a half has besides its sign and seven more of its fraction.
void set_scale(BlockNVFP4& block, float scale) {
  for (int g = 0; g < 4; ++g) {
    const int bits = f32_to_f16(scale * (1 + 0.25f * static_cast<float>(g)) / BlockNVFP4::kUnit) >> 7;
    block.scales[g] = static_cast<uint8_t>(std::min(bits, 126));
  }
}

float root_mean_square(const float* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(std::sqrt(sum / n));
}

/// FNV-1a over the bits of n floats.
uint64_t hash_of(const float* x, int n) {
  uint64_t hash = 14695981039346656037U;
  for (int i = 0; i < n; ++i) hash = (hash ^ std::bit_cast<uint32_t>(x[i])) * 1099511628211U;
  return hash;
}

template <class Block>
void draw(DType dtype, uint64_t seed, const float* values, Block& block) {
  auto* bytes = reinterpret_cast<uint8_t*>(&block);
  for (size_t i = 0; i < sizeof block; ++i) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;  // a linear congruential generator (Knuth)
    bytes[i] = static_cast<uint8_t>(seed >> 56);
  }
  set_scale(block, 1);
  float drawn[Block::kElements];
  traits(dtype).to_f32(&block, drawn, Block::kElements);
  set_scale(block, root_mean_square(values, Block::kElements) / root_mean_square(drawn, Block::kElements));
}

template <class Block>
void draw_blocks(DType dtype, const float* src, void* dst, int64_t n) {
  static std::mutex mutex;
  static std::unordered_map<uint64_t, Block> drawn;  // by hashes of the values that they are decoded to
  auto* blocks = static_cast<Block*>(dst);
  const std::lock_guard lock(mutex);
  for (int64_t i = 0; i < n / Block::kElements; ++i, src += Block::kElements) {
    const uint64_t hash = hash_of(src, Block::kElements);
    const auto known = drawn.find(hash);
    if (known != drawn.end()) {
      blocks[i] = known->second;
      continue;
    }
    draw(dtype, hash, src, blocks[i]);
    float decoded[Block::kElements];
    traits(dtype).to_f32(blocks + i, decoded, Block::kElements);
    drawn.emplace(hash_of(decoded, Block::kElements), blocks[i]);
  }
}

}  // namespace

void from_f32(DType dtype, const float* src, void* dst, int64_t n) {
  switch (dtype) {
#define SHOAL_QUANTIZED_32(...)
#define SHOAL_QUANTIZED(id, ...) \
  case DType::k##id:             \
    return draw_blocks<Block##id>(dtype, src, dst, n);
#include "graph/dtypes.def"
    default:
      traits(dtype).from_f32(src, dst, n);
  }
}

}  // namespace shoal::test
