// Integer dot products of quantised rows with 8-bit columns, for products that read every weight once.
//
// A warp reads a row in steps of kStepElements (2048). In each step, a lane processes one unit of 64 elements. The
// bytes of a step are copied to shared memory, at the same offset from a 16-byte boundary as in the row. Each lane
// decodes its unit to 64 small integers in registers. The column is also stored in steps. Within a step, the elements
// of the column have the order in which lanes read them, so that each load of a warp covers 512 contiguous bytes:
//
//   512 bytes for each of the chunks 0, 1, 2 and 3: 16 elements of every lane (32 lanes)
//   256 * kGroups bytes of headers: kGroups scales (f32) and kGroups sums of integers (int32) of every lane
//
// A group consists of the elements of a unit that share a scale. A format has two or four groups per unit. With two
// groups, the chunks of a unit are elements 0..15, 16..31, 32..47, 48..63 of 64 consecutive elements. With four groups
// (formats with a scale for every 16 elements), chunk c of lane 2 h + l is elements 128 h + 32 c + 16 l .. + 15 of a
// super-block, because these elements share bytes. For a group, the column is x ~ scale * v, and weights are d * q + m
// (m = kOffset * d if kOffset != 0). Then
//
//   sum of weight * x = scale * (d * sum(q v) + m * sum(v))
#pragma once

#include "devices/cuda/column_record.h"
#include "devices/cuda/kernels/dequantize.h"
#include "devices/cuda/kernels/memory.h"

namespace shoal::cuda {

/// A unit of weights in registers, four words per chunk. `m` is unused if the format has an offset. In some formats,
/// decoding leaves codes at a higher bit position in their bytes. Word i then contains the codes times 2^log2_of(i),
/// and dot_unit() shifts the sums instead of the codes.
template <int kGroups>
struct Unit {
  uint32_t q[16];
  float d[kGroups], m[kGroups];
};

/// The elements of a column's step that one lane reads.
template <int kGroups>
struct ColumnUnit {
  uint32_t v[16];
  float scale[kGroups];
  int sum[kGroups];
};

__device__ inline void put_words(uint32_t* to, uint4 from) {
  to[0] = from.x;
  to[1] = from.y;
  to[2] = from.z;
  to[3] = from.w;
}

template <int kGroups>
__device__ inline void load_column(const uint4* step, unsigned lane, ColumnUnit<kGroups>& x) {
  const uint4* vectors = step + lane;
#pragma unroll
  for (int i = 0; i < 4; ++i) put_words(x.v + 4 * i, load_as<uint4>(vectors + 32 * i));
  uint32_t header[2 * kGroups];
#pragma unroll
  for (int i = 0; i < kGroups / 2; ++i) put_words(header + 4 * i, load_as<uint4>(vectors + 128 + 32 * i));
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    x.scale[i] = std::bit_cast<float>(header[i]);
    x.sum[i] = static_cast<int>(header[kGroups + i]);
  }
}

/// Dot product of a unit of weights and a unit of the column.
template <class Format, int kGroups>
__device__ inline float dot_unit(const Unit<kGroups>& a, const ColumnUnit<kGroups>& x) {
  constexpr int kWords = 16 / kGroups;
  float total = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int first = g * kWords;
    int dot = 0;
#pragma unroll
    for (int i = first + kWords - 1; i >= first; --i) {
      dot = Format::kUnsigned ? dot_unsigned(a.q[i], static_cast<int>(x.v[i]), dot)
                              : __dp4a(static_cast<int>(a.q[i]), static_cast<int>(x.v[i]), dot);
      dot >>= Format::log2_of(i) - (i > first ? Format::log2_of(i - 1) : 0);
    }
    if (Format::kOffset) dot += Format::kOffset * x.sum[g];
    float part = a.d[g] * static_cast<float>(dot);
    if (Format::kHasSum && !Format::kOffset) part = fmaf(a.m[g], static_cast<float>(x.sum[g]), part);
    total = fmaf(x.scale[g], part, total);
  }
  return total;
}

/// The bytes of a step in shared memory. `words` is aligned to 16 bytes; the step starts `offset` bytes after `words`.
struct StepBytes {
  const uint32_t* words;
  unsigned offset;

  __device__ uint32_t byte(unsigned at) const { return reinterpret_cast<const uint8_t*>(words)[offset + at]; }
  __device__ uint32_t half(unsigned at) const {
    return load_as<uint16_t>(reinterpret_cast<const uint8_t*>(words) + offset + at);
  }
  /// Loads kCount words that begin at byte `at`. Each load instruction reads kBytes from an address that must be
  /// aligned to kBytes. With kBytes = 1, any address is allowed. In this case, load() reads aligned words and shifts
  /// the bytes into place. These loads may extend up to four bytes past the last word.
  template <int kBytes, int kCount>
  __device__ void load(unsigned at, uint32_t (&to)[kCount]) const {
    const unsigned first = offset + at;
    if constexpr (kBytes == 16) {
      static_assert(kCount % 4 == 0);
      const auto* from = reinterpret_cast<const uint4*>(words) + first / 16;
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) put_words(to + 4 * i, load_as<uint4>(from + i));
    } else if constexpr (kBytes == 8) {
      static_assert(kCount % 2 == 0);
      const auto* from = reinterpret_cast<const uint2*>(words) + first / 8;
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) {
        const uint2 pair = load_as<uint2>(from + i);
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
      }
    } else if constexpr (kBytes == 4) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[i] = load_as<uint32_t>(words + first / 4 + i);
    } else {
      const uint32_t* from = words + (first >> 2);
      const unsigned shift = (first & 3) * 8;
      uint32_t low = load_as<uint32_t>(from);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint32_t high = load_as<uint32_t>(from + i + 1);
        to[i] = __funnelshift_r(low, high, shift);
        low = high;
      }
    }
  }
};

/// Position of a lane's unit in a step: the byte offset of the unit's block, and the unit's index in the block
/// (`quarter`) if a block has several units.
struct UnitPlace {
  unsigned block, quarter;

  template <class Format>
  static __device__ UnitPlace of(unsigned lane) {
    constexpr unsigned kUnits = Format::kUnitsOfBlock;
    return {kept(lane / kUnits * Format::kUnitBytes), kUnits > 1 ? kept(lane % kUnits) : 0};
  }
};

inline constexpr uint32_t kNibbles = 0x0f0f0f0f, kHighNibbles = 0xf0f0f0f0, kCrumbs = 0x03030303, kBits = 0x01010101;

/// Returns the word that begins at byte kAt of `words`.
template <int kAt, int kCount>
__device__ inline uint32_t word_at(const uint32_t (&words)[kCount]) {
  if constexpr (kAt % 4 == 0) {
    return words[kAt / 4];
  } else {
    return __funnelshift_r(words[kAt / 4], words[kAt / 4 + 1], kAt % 4 * 8);
  }
}
template <int kAt, int kCount>
__device__ inline float half_at(const uint32_t (&words)[kCount]) {
  return half_bits_to_float(static_cast<uint16_t>(words[kAt / 4] >> kAt % 4 * 8));
}

/// Members that all formats share. A span consists of kSpan elements: one block or several blocks. A span contains
/// whole units.
template <class B, int kGroups_, int kSpan>
struct DotFormatOf {
  static constexpr int kGroups = kGroups_;
  static constexpr bool kWide = true;  ///< whether the format needs more registers than other formats
  static constexpr bool kUnsigned = true;
  static constexpr int kOffset = -B::kOffset;
  static constexpr bool kHasSum = B::kAdds;
  static constexpr int kBlockBytes = sizeof(B);
  static constexpr int kUnitBytes = kSpan / B::kElements * kBlockBytes, kUnitsOfBlock = kSpan / kUnitElements;
  static constexpr int kStepBytes = kStepElements / B::kElements * kBlockBytes;

  static constexpr int log2_of(int) { return 0; }
};

/// Formats with 32 elements per block. A unit is two blocks.
template <class Block>
struct DotFormat32 : DotFormatOf<Block, 2, kUnitElements> {
  static constexpr bool kFive = Block::kBits == 5;
  static constexpr bool kEight = Block::kBits == 8;
  static constexpr bool kWide = quants::kHasLevels<Block>;
  static constexpr bool kHasSum = Block::kAdds;
  static constexpr int kBlockBytes = sizeof(Block);
  static constexpr int kAlignment = 2 * kBlockBytes % 16 == 0  ? 16
                                    : 2 * kBlockBytes % 8 == 0 ? 8
                                    : 2 * kBlockBytes % 4 == 0 ? 4
                                                               : 1;
  static constexpr bool kUnsigned = !kFive && !kEight && !quants::kHasLevels<Block>;
  static constexpr int kScaleBytes = sizeof(Block::scale);

  static constexpr int log2_of(int word) { return kUnsigned && word % 8 >= 4 ? 4 : 0; }

  template <int kHalf, int kCount>
  static __device__ void decode_block(const uint32_t (&words)[kCount], Unit<2>& unit) {
    constexpr int kStart = kHalf * kBlockBytes, kHigh = kStart + (kHasSum ? 4 : kScaleBytes);
    constexpr int kCodes = kHigh + (kFive ? 4 : 0);
    if constexpr (kScaleBytes == 1) {
      unit.d[kHalf] = power_to_float(words[kStart / 4] >> kStart % 4 * 8 & 255);
    } else {
      unit.d[kHalf] = half_at<kStart>(words);
    }
    if constexpr (kHasSum) unit.m[kHalf] = half_at<kStart + 2>(words);
    uint32_t* const q = unit.q + 8 * kHalf;
    if constexpr (kEight) {
      put8<kCodes>(words, q, std::make_integer_sequence<int, 8>{});
    } else {
      uint32_t codes[4];
      put8<kCodes>(words, codes, std::make_integer_sequence<int, 4>{});
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[i] = codes[i] & kNibbles;
        q[4 + i] = kUnsigned ? codes[i] & kHighNibbles : codes[i] >> 4 & kNibbles;
      }
      if constexpr (quants::kHasLevels<Block>) {
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = levels_of<Block>(q[i]);
      }
      if constexpr (kFive) {
        const uint32_t high = word_at<kHigh>(words);
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] |= ((high >> 4 * i & 15) * 0x02040810u) & 0x10101010u;
      }
    }
  }
  template <int kAt, int kCount, int... kIndices>
  static __device__ void put8(const uint32_t (&words)[kCount], uint32_t* to, std::integer_sequence<int, kIndices...>) {
    ((to[kIndices] = word_at<kAt + 4 * kIndices>(words)), ...);
  }

  /// `blocks` is the number of blocks in the unit. If kShifted is false, the row begins at a multiple of kAlignment,
  /// and `blocks` is 2. If kShifted is true, the row may begin at any byte, and `blocks` may be 1.
  template <bool kShifted>
  static __device__ void decode(StepBytes step, UnitPlace at, int blocks, Unit<2>& unit) {
    uint32_t words[(2 * kBlockBytes + 3) / 4];
    step.load<kShifted ? 1 : kAlignment>(at.block, words);
    decode_block<0>(words, unit);
    decode_block<1>(words, unit);
    if (kShifted && blocks == 1) unit.d[1] = unit.m[1] = 0;
  }
};

/// q4_K and q5_K: a unit is 64 elements that share bytes.
template <class Block>
struct DotFormatK32 : DotFormatOf<Block, 2, 256> {
  static constexpr bool kFive = Block::kBits == 5;
  static constexpr bool kWide = kFive;
  static constexpr int kAlignment = 16;

  static constexpr int log2_of(int word) { return !kFive && word >= 8 ? 4 : 0; }

  static __device__ void scales(const uint32_t (&header)[4], unsigned quarter, Unit<2>& unit) {
    const uint32_t s = header[1], m = header[2], both = header[3];
    const bool low = quarter < 2;
    const uint32_t all_s = low ? s & 0x3f3f3f3f : (both & kNibbles) | (s >> 2 & 0x30303030);
    const uint32_t all_m = low ? m & 0x3f3f3f3f : (both >> 4 & kNibbles) | (m >> 2 & 0x30303030);
    const unsigned shift = quarter % 2 * 16;
    const float factor = half_at<0>(header), min_factor = -half_at<2>(header);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      unit.d[g] = factor * static_cast<float>(all_s >> (shift + 8 * g) & 255);
      unit.m[g] = min_factor * static_cast<float>(all_m >> (shift + 8 * g) & 255);
    }
  }

  template <bool>
  static __device__ void decode(StepBytes step, UnitPlace at, int, Unit<2>& unit) {
    const unsigned block = at.block, quarter = at.quarter;
    uint32_t header[4], codes[8];
    step.load<kAlignment>(block, header);
    step.load<kAlignment>(block + (kFive ? 48 : 16) + 32 * quarter, codes);
    scales(header, quarter, unit);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      unit.q[i] = codes[i] & kNibbles;
      unit.q[8 + i] = kFive ? codes[i] >> 4 & kNibbles : codes[i] & kHighNibbles;
    }
    if constexpr (kFive) {
      uint32_t high[8];
      step.load<kAlignment>(block + 16, high);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t bits = high[i] >> 2 * quarter;
        unit.q[i] |= (bits & kBits) << 4;
        unit.q[8 + i] |= (bits >> 1 & kBits) << 4;
      }
    }
  }
};

template <DType kType>
struct DotFormat;

template <>
struct DotFormat<DType::kQ2_K> : DotFormatOf<quants::BlockQ2_K, 4, 256> {
  static constexpr int kAlignment = 4;

  static constexpr int log2_of(int word) { return word / 4 * 2; }

  template <bool>
  static __device__ void decode(StepBytes step, UnitPlace at, int, Unit<4>& unit) {
    const unsigned block = at.block, half = at.quarter / 2, part = at.quarter % 2;
    uint32_t crumbs[4], scales[2], factors[1];
    step.load<kAlignment>(block + 16 + 32 * half + 16 * part, crumbs);
    step.load<kAlignment>(block + 8 * half, scales);
    step.load<kAlignment>(block + 80, factors);
    const float factor = half_at<0>(factors), min_factor = -half_at<2>(factors);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const uint32_t packed = scales[g / 2] >> (8 * part + g % 2 * 16);
      unit.d[g] = factor * static_cast<float>(packed & 15);
      unit.m[g] = min_factor * static_cast<float>(packed >> 4 & 15);
#pragma unroll
      for (int i = 0; i < 4; ++i) unit.q[4 * g + i] = crumbs[i] & kCrumbs << 2 * g;
    }
  }
};

/// The size of a block is an odd multiple of two bytes, so some blocks are not aligned to words.
template <>
struct DotFormat<DType::kQ3_K> : DotFormatOf<quants::BlockQ3_K, 4, 256> {
  static constexpr int kAlignment = 2;

  template <bool>
  static __device__ void decode(StepBytes step, UnitPlace at, int, Unit<4>& unit) {
    const unsigned block = at.block, half = at.quarter / 2, part = at.quarter % 2;
    uint32_t high[4], crumbs[4], scales[3];
    step.load<1>(block + 16 * part, high);
    step.load<1>(block + 32 + 32 * half + 16 * part, crumbs);
    step.load<1>(block + 96, scales);
    const float factor = half_bits_to_float(static_cast<uint16_t>(step.half(block + 108)));
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      // Scale of sub-block 8 half + 2 g + part.
      const uint32_t low = scales[g / 2] >> (g % 2 * 16 + 8 * part + 4 * half) & 15;
      const uint32_t top = scales[2] >> (g % 2 * 16 + 8 * part + 4 * half + g / 2 * 2) & 3;
      unit.d[g] = factor * static_cast<float>(static_cast<int>(low | top << 4) - 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unit.q[4 * g + i] = (crumbs[i] >> 2 * g & kCrumbs) | (high[i] >> (4 * half + g) & kBits) << 2;
      }
    }
  }
};

template <>
struct DotFormat<DType::kQ6_K> : DotFormatOf<quants::BlockQ6_K, 4, 256> {
  static constexpr int kAlignment = 2;

  template <bool>
  static __device__ void decode(StepBytes step, UnitPlace at, int, Unit<4>& unit) {
    const unsigned block = at.block, half = at.quarter / 2, part = at.quarter % 2;
    uint32_t first[4], second[4], crumbs[4];
    step.load<1>(block + 64 * half + 16 * part, first);
    step.load<1>(block + 64 * half + 32 + 16 * part, second);
    step.load<1>(block + 128 + 32 * half + 16 * part, crumbs);
    const float factor = half_bits_to_float(static_cast<uint16_t>(step.half(block + 208)));
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const auto scale = static_cast<int8_t>(step.byte(block + 192 + 8 * half + 2 * g + part));
      unit.d[g] = factor * static_cast<float>(scale);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t nibbles = (g % 2 ? second[i] : first[i]) >> g / 2 * 4 & kNibbles;
        unit.q[4 * g + i] = nibbles | (crumbs[i] >> 2 * g & kCrumbs) << 4;
      }
    }
  }
};

/// A unit is two sub-blocks.
template <>
struct DotFormat<DType::kIQ4_XS> : DotFormatOf<quants::BlockIQ4_XS, 2, 256> {
  static constexpr bool kUnsigned = false;
  static constexpr int kAlignment = 8;

  template <bool>
  static __device__ void decode(StepBytes step, UnitPlace at, int, Unit<2>& unit) {
    const unsigned block = at.block, quarter = at.quarter;
    uint32_t header[2], codes[8];
    step.load<kAlignment>(block, header);
    step.load<kAlignment>(block + 8 + 32 * quarter, codes);
    const float factor = half_at<0>(header);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const unsigned j = 2 * quarter + g;
      const uint32_t scale = (header[1] >> 4 * j & 15) | (header[0] >> (16 + 2 * j) & 3) << 4;
      unit.d[g] = factor * static_cast<float>(static_cast<int>(scale) - 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unit.q[8 * g + i] = levels_of<quants::IQ4Levels>(codes[4 * g + i] & kNibbles);
        unit.q[8 * g + 4 + i] = levels_of<quants::IQ4Levels>(codes[4 * g + i] >> 4 & kNibbles);
      }
    }
  }
};

/// kSpan of a coded format. A unit has four groups if kGroup == 16, else two groups.
template <class B>
inline constexpr int kCodedSpan = B::kElements > 128 ? 256
                                  : B::kGroup == 16  ? 128
                                                     : B::kElements;

/// Coded formats of graph/quants/codes.inc. Blocks are aligned to one or two bytes. decode() reads a block directly at
/// its address in shared memory.
template <class B>
struct DotFormatCoded : DotFormatOf<B, B::kGroup == 16 ? 4 : 2, kCodedSpan<B>> {
  static constexpr int kGroups = B::kGroup == 16 ? 4 : 2;
  static constexpr bool kUnsigned = false;
  static constexpr int kAlignment = 2;

  /// Returns the index of the first element of a chunk.
  static __device__ int element_of(unsigned quarter, int chunk) {
    const int q = static_cast<int>(quarter);
    return kGroups == 4 ? q / 2 * 128 + 32 * chunk + q % 2 * 16 : q * 64 + 16 * chunk;
  }

  template <bool>
  static __device__ void decode(StepBytes step, UnitPlace at, int, Unit<kGroups>& unit) {
    const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(step.words) + step.offset + at.block;
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      const int element = element_of(at.quarter, chunk), i = element % B::kElements;
      const BlockBytes from(bytes + element / B::kElements * static_cast<int>(sizeof(B)));
      if (kGroups == 4 || chunk % 2 == 0)
        unit.d[kGroups == 4 ? chunk : chunk / 2] = formats::Coded<B>::scale_at(from, i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Codes codes = CodesOf<B>::codes(from, i + 8 * half);
        unit.q[4 * chunk + 2 * half] = codes.low;
        unit.q[4 * chunk + 2 * half + 1] = codes.high;
      }
    }
  }
};

template <>
struct DotFormat<DType::kQ4_K> : DotFormatK32<quants::BlockQ4_K> {};
template <>
struct DotFormat<DType::kQ5_K> : DotFormatK32<quants::BlockQ5_K> {};
#define SHOAL_QUANTIZED_32(id, ...) \
  template <>                       \
  struct DotFormat<DType::k##id> : DotFormat32<quants::Block##id> {};
#define SHOAL_QUANTIZED_256(...)
#define SHOAL_QUANTIZED_CODED(id, ...) \
  template <>                          \
  struct DotFormat<DType::k##id> : DotFormatCoded<quants::Block##id> {};
#include "graph/dtypes.def"

}  // namespace shoal::cuda
