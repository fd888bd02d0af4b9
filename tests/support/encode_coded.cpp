// Encoders of the coded dtypes (SHOAL_QUANTIZED_CODED in graph/dtypes.def). All encoders use the same search. First,
// the search fits a scale to each group, so that the scaled elements are near the levels of the dtype. Then the search
// finds the nearest level of each element, or the nearest codebook entry for elements that are stored together. The
// levels, the entries and their storage depend on the dtype (CodeWriter).
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "graph/dtype.h"
#include "graph/quants/codes.h"
#include "graph/quants/fit.h"
#include "graph/quants/grids.h"
#include "tests/support/encoders.h"

namespace shoal::test {
namespace {

using namespace quants;

/// Index of the level nearest to x. The levels must ascend. NaN gives 0.
template <size_t kCount>
int nearest_level(const std::array<float, kCount>& levels, float x) {
  int number = 0;
  for (size_t i = 0; i + 1 < kCount; ++i) number += x > (levels[i] + levels[i + 1]) * 0.5f ? 1 : 0;
  return number;
}

/// Returns the candidate scale with the smallest squared error of x ~ scale * level. Each candidate first maps the
/// element with the largest magnitude to a level or near a level. Then the candidate is replaced by the best scale for
/// the resulting levels. Four more rounds refine the best candidate. A negative scale is possible only if some levels
/// are negative and the levels are not symmetric.
///   {1, 0, -2} with {-1, 0, 1} -> 1.5, because the squared error is smaller than with 2
template <size_t kCount>
float fit_levels(const float* x, int n, const std::array<float, kCount>& levels) {
  float extreme = 0;
  for (int i = 0; i < n; ++i) extreme = std::fabs(x[i]) > extreme ? std::fabs(x[i]) : extreme;
  if (!(extreme > 0)) return 0;
  const bool symmetric = levels.front() >= 0 || levels.front() == -levels.back();
  float best_scale = 0, best_gain = 0;
  const auto consider = [&](float inverse_scale) {
    float xq = 0, qq = 0;
    for (int i = 0; i < n; ++i) {
      const float level = levels[static_cast<size_t>(nearest_level(levels, x[i] * inverse_scale))];
      xq += x[i] * level;
      qq += level * level;
    }
    // With the best scale, the squared error is |x|^2 - xq^2 / qq.
    if (!(qq > 0) || (symmetric && !(xq > 0)) || !(xq * xq > best_gain * qq)) return;
    best_gain = xq * xq / qq;
    best_scale = xq / qq;
  };
  for (const float level : levels) {
    if (level == 0 || (symmetric && level < 0)) continue;
    for (int step = -2; step <= 2; ++step) {
      const float candidate = level * (1 + 0.07f * static_cast<float>(step)) / extreme;
      consider(candidate);
      if (!symmetric) consider(-candidate);
    }
  }
  for (int round = 0; round < 4 && best_scale != 0; ++round) consider(1 / best_scale);
  return best_scale;
}

struct Nearest {
  int number = 0;
  float error = 0;  ///< squared error
};

/// The entries of one codebook (grid), converted to floats.
class Entries {
 public:
  template <class Grid>
  explicit Entries(const Grid& grid) : elements_(Grid::kElements) {
    for (const auto entry : grid.entries) {
      float norm = 0;
      for (int j = 0; j < elements_; ++j) {
        const auto element = static_cast<float>(entry >> (8 * j) & 255);
        values_.push_back(element);
        norm += element * element;
      }
      norms_.push_back(norm);
    }
  }

  /// Returns the entry nearest to the elements at x. If several entries are equally near, returns the first of them.
  Nearest nearest(const float* x) const {
    Nearest best{0, INFINITY};
    float of_x = 0;
    for (int j = 0; j < elements_; ++j) of_x += x[j] * x[j];
    for (size_t i = 0; i < norms_.size(); ++i) {
      const float* entry = values_.data() + i * static_cast<size_t>(elements_);
      float product = 0;
      for (int j = 0; j < elements_; ++j) product += x[j] * entry[j];
      const float error = norms_[i] - 2 * product + of_x;
      if (error < best.error) best = {static_cast<int>(i), error};
    }
    return best;
  }

 private:
  int elements_;
  std::vector<float> values_, norms_;
};

template <class Grid>
const Entries& entries_of(const Grid& grid) {
  static const Entries entries(grid);  // one object per grid, because each grid has its own type
  return entries;
}

/// The values that a code can have.
struct IQ2Levels {
  static constexpr bool kMagnitudes = true;
  static constexpr std::array<float, 3> kLevels{8, 25, 43};
};
struct IQ3XXSLevels {
  static constexpr bool kMagnitudes = true;
  static constexpr std::array<float, 8> kLevels{4, 12, 20, 28, 36, 44, 52, 62};
};
struct IQ3SLevels {
  static constexpr bool kMagnitudes = true;
  static constexpr std::array<float, 8> kLevels{1, 3, 5, 7, 9, 11, 13, 15};
};
struct IQ1Levels {
  static constexpr bool kMagnitudes = false;
  static constexpr std::array<float, 6> kLevels{-9, -7, -1, 1, 7, 9};
};

template <class Block>
float scale_of(const Block& block, int group) {
  const CodeScale scale = CodesOf<Block>::scale(BlockBytes(&block), group);
  return f16_to_f32(static_cast<uint16_t>(scale.half)) * (static_cast<float>(scale.factor) * Block::kUnit);
}

/// The sign bits and magnitudes of eight elements that are stored together. If `even` is set, the number of set sign
/// bits must be even. If this number is odd, the sign bit of the element nearest to zero is flipped, and the magnitude
/// of this element becomes negative.
struct Signs {
  uint8_t bits = 0;
  float magnitudes[8];

  Signs(const float (&x)[8], bool even) {
    int count = 0, least = 0;
    for (int j = 0; j < 8; ++j) {
      magnitudes[j] = std::fabs(x[j]);
      const bool is_negative = x[j] < 0;
      bits = static_cast<uint8_t>(bits | (is_negative ? 1 << j : 0));
      count += is_negative ? 1 : 0;
      if (magnitudes[j] < magnitudes[least]) least = j;
    }
    if (!even || count % 2 == 0) return;
    bits = static_cast<uint8_t>(bits ^ 1 << least);
    magnitudes[least] = -magnitudes[least];
  }
};

/// Stores each scale as the product of one common f16 scale and an odd factor 2 s + 1. The largest factor is kMost.
template <class Block, int kMost>
struct OddScales {
  uint16_t half = 0;
  int s[Block::kElements / Block::kGroup]{};

  explicit OddScales(const float* scales) {
    constexpr int kCount = Block::kElements / Block::kGroup;
    half = f32_to_f16(*std::max_element(scales, scales + kCount) / (static_cast<float>(kMost) * Block::kUnit));
    const float factor = inverse(f16_to_f32(half) * Block::kUnit);
    for (int g = 0; g < kCount; ++g) s[g] = round_to((scales[g] * factor - 1) * 0.5f, 0, kMost / 2);
  }
};

template <class Block>
void put_nibble_scales(const float* scales, Block& block) {
  const OddScales<Block, 31> all(scales);
  block.scale = all.half;
  for (int g = 0; g < Block::kElements / Block::kGroup; ++g) {
    block.scales[g / 2] = static_cast<uint8_t>(block.scales[g / 2] | all.s[g] << (g % 2 * 4));
  }
}
void put_word(uint8_t* to, uint32_t word) {
  std::memcpy(to, &word, sizeof word);
}
uint32_t word_at(const uint8_t* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// The functions and constants of an encoder that depend on the dtype:
/// - kLevels: the values that a code can have. If signs are stored separately (kMagnitudes), these are the magnitudes.
/// - kFitGroup: number of elements with a common scale. Writers omit kFitGroup if it equals Block::kGroup.
/// - put_scales(): stores all scales.
/// - put(), put_group() or put_all(): stores eight elements, a group or a block, respectively. A writer has only one of
///   these functions. The elements are already divided by their scale.
template <class Block>
struct CodeWriter;

template <>
struct CodeWriter<BlockIQ2_XXS> : IQ2Levels {
  static void put_scales(const float* scales, BlockIQ2_XXS& block) {
    const OddScales<BlockIQ2_XXS, 31> all(scales);
    block.scale = all.half;
    for (int g = 0; g < 8; ++g) block.codes[8 * g + 7] = static_cast<uint8_t>(all.s[g] << 4);
  }
  static void put(const float (&x)[8], int i, BlockIQ2_XXS& block) {
    const Signs signs(x, true);
    uint8_t* at = block.codes + i / 32 * 8;
    at[i / 8 % 4] = static_cast<uint8_t>(entries_of(kGridIQ2_XXS).nearest(signs.magnitudes).number);
    put_word(at + 4, word_at(at + 4) | (signs.bits & 127u) << (i / 8 % 4 * 7));
  }
};
template <>
struct CodeWriter<BlockIQ2_XS> : IQ2Levels {
  static void put_scales(const float* scales, BlockIQ2_XS& block) { put_nibble_scales(scales, block); }
  static void put(const float (&x)[8], int i, BlockIQ2_XS& block) {
    const Signs signs(x, true);
    const int number = entries_of(kGridIQ2_XS).nearest(signs.magnitudes).number;
    block.codes[i / 8] = static_cast<uint16_t>(number | (signs.bits & 127) << 9);
  }
};
template <>
struct CodeWriter<BlockIQ2_S> : IQ2Levels {
  static void put_scales(const float* scales, BlockIQ2_S& block) { put_nibble_scales(scales, block); }
  static void put(const float (&x)[8], int i, BlockIQ2_S& block) {
    const Signs signs(x, false);
    const int j = i / 8, number = entries_of(kGridIQ2_S).nearest(signs.magnitudes).number;
    block.low[j] = static_cast<uint8_t>(number);
    block.signs[j] = signs.bits;
    block.high[j / 4] = static_cast<uint8_t>(block.high[j / 4] | number >> 8 << (j % 4 * 2));
  }
};
template <>
struct CodeWriter<BlockIQ3_XXS> : IQ3XXSLevels {
  static void put_scales(const float* scales, BlockIQ3_XXS& block) {
    const OddScales<BlockIQ3_XXS, 31> all(scales);
    block.scale = all.half;
    for (int g = 0; g < 8; ++g) block.signs[4 * g + 3] = static_cast<uint8_t>(all.s[g] << 4);
  }
  static void put(const float (&x)[8], int i, BlockIQ3_XXS& block) {
    const Signs signs(x, true);
    for (int k = 0; k < 2; ++k) {
      const int number = entries_of(kGridIQ3_XXS).nearest(signs.magnitudes + 4 * k).number;
      block.codes[i / 4 + k] = static_cast<uint8_t>(number);
    }
    uint8_t* at = block.signs + i / 32 * 4;
    put_word(at, word_at(at) | (signs.bits & 127u) << (i / 8 % 4 * 7));
  }
};
template <>
struct CodeWriter<BlockIQ3_S> : IQ3SLevels {
  static void put_scales(const float* scales, BlockIQ3_S& block) { put_nibble_scales(scales, block); }
  static void put(const float (&x)[8], int i, BlockIQ3_S& block) {
    const Signs signs(x, false);
    block.signs[i / 8] = signs.bits;
    for (int k = 0; k < 2; ++k) {
      const int j = i / 4 + k, number = entries_of(kGridIQ3_S).nearest(signs.magnitudes + 4 * k).number;
      block.low[j] = static_cast<uint8_t>(number);
      block.high[j / 8] = static_cast<uint8_t>(block.high[j / 8] | number >> 8 << (j % 8));
    }
  }
};

/// Returns the nearest entry. A code g (-1, 0 or 1) stands for the level 8 g + 1, or for 8 g - 1 if `is_negative` is
/// set. The codebook stores code g as 8 g + 8.
Nearest nearest_ternary(const float* x, bool is_negative) {
  float wanted[8];
  for (int j = 0; j < 8; ++j) wanted[j] = x[j] + (is_negative ? 9.0f : 7.0f);
  return entries_of(kGridIQ1_S).nearest(wanted);
}
template <>
struct CodeWriter<BlockIQ1_S> : IQ1Levels {
  static void put_scales(const float* scales, BlockIQ1_S& block) {
    const OddScales<BlockIQ1_S, 15> all(scales);
    block.scale = all.half;
    for (int g = 0; g < 8; ++g) block.high[g] = static_cast<uint16_t>(all.s[g] << 12);
  }
  /// Encodes the 32 elements of a group. Tries both signs of the offset 1 and uses the sign with the smaller error.
  static void put_group(const float* x, int group, BlockIQ1_S& block) {
    Nearest found[2][4];
    float errors[2] = {};
    for (int sign = 0; sign < 2; ++sign) {
      for (int j = 0; j < 4; ++j) {
        found[sign][j] = nearest_ternary(x + 8 * j, sign == 1);
        errors[sign] += found[sign][j].error;
      }
    }
    const int sign = errors[1] < errors[0] ? 1 : 0;
    unsigned high = block.high[group] | static_cast<unsigned>(sign) << 15;
    for (int j = 0; j < 4; ++j) {
      const int number = found[sign][j].number;
      block.low[4 * group + j] = static_cast<uint8_t>(number);
      high |= static_cast<unsigned>(number >> 8) << (3 * j);
    }
    block.high[group] = static_cast<uint16_t>(high);
  }
};
template <>
struct CodeWriter<BlockIQ1_M> : IQ1Levels {
  static void put_scales(const float* scales, BlockIQ1_M& block) {
    const OddScales<BlockIQ1_M, 15> all(scales);
    for (int i = 0; i < 4; ++i) {
      unsigned bits = (all.half >> 4 * i & 15u) << 12;
      for (int j = 0; j < 4; ++j) bits |= static_cast<unsigned>(all.s[4 * i + j]) << (3 * j);
      block.scales[i] = static_cast<uint16_t>(bits);
    }
  }
  static void put(const float (&x)[8], int i, BlockIQ1_M& block) {
    const Nearest plus = nearest_ternary(x, false), minus = nearest_ternary(x, true);
    const bool is_negative = minus.error < plus.error;
    const int number = is_negative ? minus.number : plus.number, j = i / 8;
    block.low[j] = static_cast<uint8_t>(number);
    const int high = number >> 8 | (is_negative ? 8 : 0);
    block.high[j / 2] = static_cast<uint8_t>(block.high[j / 2] | high << (j % 2 * 4));
  }
};

/// Base of the writers for dtypes with one f16 scale per block and a separate code for each element.
template <class Block>
struct OneScale {
  static constexpr int kFitGroup = Block::kElements;
  static constexpr bool kMagnitudes = false;
  static void put_scales(const float* scales, Block& block) { block.scale = f32_to_f16(scales[0]); }
};
template <>
struct CodeWriter<BlockTQ2_0> : OneScale<BlockTQ2_0> {
  static constexpr std::array<float, 3> kLevels{-1, 0, 1};
  static void put(const float (&x)[8], int i, BlockTQ2_0& block) {
    for (int j = 0; j < 8; ++j) {
      uint8_t& byte = block.crumbs[i / 128 * 32 + i % 32 + j];
      byte = static_cast<uint8_t>(byte | nearest_level(kLevels, x[j]) << (i / 32 % 4 * 2));
    }
  }
};
template <>
struct CodeWriter<BlockTQ1_0> : OneScale<BlockTQ1_0> {
  static constexpr std::array<float, 3> kLevels{-1, 0, 1};
  /// Encodes up to five trits as a number n < 3^5; the first trit is the highest digit. Returns 256 n / 243, rounded
  /// up.
  static uint8_t byte_of(const float* x, int step, int count) {
    int number = 0;
    for (int n = 0; n < 5; ++n) number = number * 3 + (n < count ? nearest_level(kLevels, x[n * step]) : 0);
    return static_cast<uint8_t>((number * 256 + 242) / 243);
  }
  static void put_all(const float* x, BlockTQ1_0& block) {
    for (int i = 0; i < 32; ++i) block.fives[i] = byte_of(x + i, 32, 5);
    for (int i = 0; i < 16; ++i) block.fives[32 + i] = byte_of(x + 160 + i, 16, 5);
    for (int i = 0; i < 4; ++i) block.fours[i] = byte_of(x + 240 + i, 4, 4);
  }
};
template <>
struct CodeWriter<BlockQ1_0> : OneScale<BlockQ1_0> {
  static constexpr bool kMagnitudes = true;
  static constexpr std::array<float, 1> kLevels{1};
  static void put(const float (&x)[8], int i, BlockQ1_0& block) {
    for (int j = 0; j < 8; ++j) {
      block.bits[i / 8] = static_cast<uint8_t>(block.bits[i / 8] | (x[j] > 0 ? 1 << j : 0));
    }
  }
};
template <>
struct CodeWriter<BlockQ2_0> : OneScale<BlockQ2_0> {
  static constexpr std::array<float, 4> kLevels{-1, 0, 1, 2};
  static void put(const float (&x)[8], int i, BlockQ2_0& block) {
    for (int j = 0; j < 8; ++j) {
      uint8_t& byte = block.crumbs[(i + j) / 4];
      byte = static_cast<uint8_t>(byte | nearest_level(kLevels, x[j]) << (j % 4 * 2));
    }
  }
};
template <>
struct CodeWriter<BlockNVFP4> {
  static constexpr bool kMagnitudes = true;
  static constexpr std::array<float, 8> kLevels{0, 1, 2, 3, 4, 6, 8, 12};
  /// Stores each scale as the nearest of the 127 finite scales. The stored byte contains the upper bits of the scale's
  /// f16 value, rounded.
  static void put_scales(const float* scales, BlockNVFP4& block) {
    for (int g = 0; g < 4; ++g) {
      const int bits = f32_to_f16(scales[g] * (1 / BlockNVFP4::kUnit));
      block.scales[g] = static_cast<uint8_t>(std::clamp((bits + 63 + (bits >> 7 & 1)) >> 7, 0, 126));
    }
  }
  static void put(const float (&x)[8], int i, BlockNVFP4& block) {
    for (int j = 0; j < 8; ++j) {
      const int level = nearest_level(kLevels, std::fabs(x[j])), code = level > 0 && x[j] < 0 ? level + 8 : level;
      uint8_t& byte = block.nibbles[i / 16 * 8 + j];
      byte = static_cast<uint8_t>(byte | code << (i / 8 % 2 * 4));
    }
  }
};

template <class Block>
constexpr int fit_group() {
  if constexpr (requires { CodeWriter<Block>::kFitGroup; }) return CodeWriter<Block>::kFitGroup;
  return Block::kGroup;
}

template <class Block>
void encode_block(const float* x, Block& block) {
  using Writer = CodeWriter<Block>;
  constexpr int kFitGroup = fit_group<Block>();
  float scales[Block::kElements / kFitGroup];
  for (int g = 0; g < Block::kElements / kFitGroup; ++g) {
    float group[kFitGroup];
    for (int i = 0; i < kFitGroup; ++i) {
      const float value = x[g * kFitGroup + i];
      group[i] = Writer::kMagnitudes ? std::fabs(value) : value;
    }
    scales[g] = fit_levels(group, kFitGroup, Writer::kLevels);
  }
  block = {};
  Writer::put_scales(scales, block);
  float multiples[Block::kElements];
  for (int i = 0; i < Block::kElements; ++i) multiples[i] = x[i] * inverse(scale_of(block, i / Block::kGroup));
  if constexpr (requires { Writer::put_all(multiples, block); }) {
    Writer::put_all(multiples, block);
  } else if constexpr (requires { Writer::put_group(multiples, 0, block); }) {
    for (int g = 0; g < Block::kElements / Block::kGroup; ++g) {
      Writer::put_group(multiples + g * Block::kGroup, g, block);
    }
  } else {
    for (int i = 0; i < Block::kElements; i += 8) {
      float eight[8];
      std::copy_n(multiples + i, 8, eight);
      Writer::put(eight, i, block);
    }
  }
}

template <class Block>
void encode(const float* src, void* dst, int64_t n) {
  auto* blocks = static_cast<Block*>(dst);
  for (int64_t b = 0; b < n / Block::kElements; ++b) encode_block(src + b * Block::kElements, blocks[b]);
}

}  // namespace

#define SHOAL_QUANTIZED_CODED(id, name, ...)                     \
  void name##_from_f32(const float* src, void* dst, int64_t n) { \
    encode<Block##id>(src, dst, n);                              \
  }
#include "graph/dtypes.def"

}  // namespace shoal::test
