// Values of the quantised blocks of GGUF (graph/quants/blocks.h) on the device. Every element is
//   scale * code + add
// with a small integer code; the elements of a group (16 or 32 of them) have one scale and one add. Products and sums
// round one after the other, never fused, so that values equal graph/quants bit for bit.
//
//   using Q = Quantized<DType::kQ4_K>;
//   const Q::Block* blocks = ...;
//   float values[8];
//   values_at<Q>(blocks[b], i, values);         // elements i .. i + 7, i a multiple of 8
//   const Scaling s = Q::scaling(blocks[b], i);  // or the parts of it, for integer products:
//   const Codes c = Q::codes(blocks[b], i);      // eight signed bytes
#pragma once

#include <bit>

#include "devices/cuda/kernels/codes.h"
#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/memory.h"
#include "graph/dtype.h"
#include "graph/quants/blocks.h"

namespace shoal::cuda {

__device__ inline float half_bits_to_float(uint16_t bits) {
  return __half2float(std::bit_cast<__half>(bits));
}
/// 2^(power - 128); those of 0 and 1 are denormal.
__device__ inline float power_to_float(uint32_t power) {
  return std::bit_cast<float>(power < 2 ? 0x200000u << power : (power - 1) << 23);
}
/// Of a block's scale.
__device__ inline float scale_to_float(uint16_t half) {
  return half_bits_to_float(half);
}
__device__ inline float scale_to_float(uint8_t power) {
  return power_to_float(power);
}

/// Of one group of elements.
struct Scaling {
  float scale;
  float add;  ///< 0 for formats without (kAdds == false)
};

/// Eight bytes at an address with the alignment of a block: 1 for blocks of odd size, 4 for those of whole words, else
/// 2. Blocks lie one after the other from an address aligned to 16 on.
template <class Block>
__device__ inline Codes eight_bytes(const void* from) {
  if constexpr (sizeof(Block) % 4 == 0) {
    const auto* words = static_cast<const uint32_t*>(from);
    return {load_as<uint32_t>(words), load_as<uint32_t>(words + 1)};
  } else if constexpr (sizeof(Block) % 2 != 0) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    const auto word = [&](int i) {
      return static_cast<uint32_t>(bytes[i] | bytes[i + 1] << 8 | bytes[i + 2] << 16) | uint32_t{bytes[i + 3]} << 24;
    };
    return {word(0), word(4)};
  } else {
    const auto* halves = static_cast<const uint16_t*>(from);
    const auto half = [&](int i) { return static_cast<uint32_t>(load_as<uint16_t>(halves + i)); };
    return {half(0) | half(1) << 16, half(2) | half(3) << 16};
  }
}

/// `count` bits of each byte from bit `first` on.
__device__ inline Codes bits_of(Codes bytes, int first, int count) {
  const uint32_t mask = ((1u << count) - 1) * 0x01010101u;
  return {bytes.low >> first & mask, bytes.high >> first & mask};
}
/// a | b << shift; the bits stay within their bytes.
__device__ inline Codes with_high_bits(Codes a, Codes b, int shift) {
  return {a.low | b.low << shift, a.high | b.high << shift};
}
/// Bytes 0..127 minus `value` <= 128, as signed bytes.
__device__ inline Codes minus(Codes bytes, uint32_t value) {
  const uint32_t all = value * 0x01010101u, top = 0x80808080u;
  return {((bytes.low | top) - all) ^ top, ((bytes.high | top) - all) ^ top};
}
/// Bit j of `bits` as byte j.
__device__ inline Codes spread(uint32_t bits) {
  return {((bits & 15) * 0x00204081u) & 0x01010101u, ((bits >> 4 & 15) * 0x00204081u) & 0x01010101u};
}

/// Four neighbours of Block::kLevels, each plus kBias, as the bytes of a word.
template <class Block, int kFirst, int kBias>
inline constexpr uint32_t kFourLevels = [] {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= static_cast<uint32_t>(static_cast<uint8_t>(Block::kLevels[kFirst + i] + kBias)) << 8 * i;
  }
  return word;
}();
/// kLevels[code] + kBias of four codes below 16, one a byte.
template <class Block, int kBias = 0>
__device__ inline uint32_t levels_of(uint32_t codes) {
  // A byte is chosen by a nibble of three bits, from the lower or the upper eight levels.
  uint32_t choice = codes & 0x07070707;
  choice = (choice | choice >> 4) & 0x00ff00ff;
  choice = (choice | choice >> 8) & 0xffff;
  const uint32_t lower = __byte_perm(kFourLevels<Block, 0, kBias>, kFourLevels<Block, 4, kBias>, choice);
  const uint32_t upper = __byte_perm(kFourLevels<Block, 8, kBias>, kFourLevels<Block, 12, kBias>, choice);
  const uint32_t is_upper = (codes >> 3 & 0x01010101) * 255;
  return (lower & ~is_upper) | (upper & is_upper);
}
template <class Block>
__device__ inline Codes levels_of(Codes codes) {
  return {levels_of<Block>(codes.low), levels_of<Block>(codes.high)};
}

/// Block, scaling(block, i) of the group of element i, codes(block, i) of the elements i .. i + 7 with i a multiple of
/// 8; from the block kElements, kGroup (elements that share a scaling) and kAdds.
template <DType kType>
struct Quantized;

namespace formats {

/// What formats share.
template <class B>
struct Common {
  using Block = B;
  static constexpr int kElements = B::kElements, kGroup = B::kGroup;
  static constexpr bool kAdds = B::kAdds;
};

/// The formats of 32 elements: byte j has element j in its low and element j + 16 in its high nibble.
template <class B>
struct Of32 : Common<B> {
  static __device__ Scaling scaling(const B& block, int) {
    if constexpr (B::kAdds) {
      return {scale_to_float(block.scale), half_bits_to_float(block.min)};
    } else {
      return {scale_to_float(block.scale), 0};
    }
  }
  static __device__ Codes codes(const B& block, int i) {
    if constexpr (B::kBits == 8) {
      return eight_bytes<B>(block.values + i);
    } else {
      Codes found = bits_of(eight_bytes<B>(block.nibbles + i % 16), i / 16 * 4, 4);
      if constexpr (B::kBits == 5) found = with_high_bits(found, spread(block.high_bits[i / 8]), 4);
      if constexpr (B::kOffset != 0) found = minus(found, B::kOffset);
      if constexpr (quants::kHasLevels<B>) found = levels_of<B>(found);
      return found;
    }
  }
};

/// Of 256 elements.
template <class B>
struct Of256 : Common<B> {
  using Block = B;
  static __device__ Scaling only_scale(const Block& block, int scale) {
    return {Rounded(half_bits_to_float(block.scale)) * Rounded(static_cast<float>(scale)), 0};
  }
  static __device__ Scaling scale_and_min(const Block& block, int scale, int min) {
    return {Rounded(half_bits_to_float(block.scale)) * Rounded(static_cast<float>(scale)),
            -(Rounded(half_bits_to_float(block.min_scale)) * Rounded(static_cast<float>(min)))};
  }
  static __device__ Codes crumbs(const Block& block, int i) {
    return bits_of(eight_bytes<Block>(block.crumbs + i / 128 * 32 + i % 32), i / 32 % 4 * 2, 2);
  }
  static __device__ Codes nibbles(const Block& block, int i) {
    return bits_of(eight_bytes<Block>(block.nibbles + i / 64 * 32 + i % 32), i / 32 % 2 * 4, 4);
  }
  static __device__ Codes high_bits(const Block& block, int i) {
    return bits_of(eight_bytes<Block>(block.high_bits + i % 32), i / 32, 1);
  }
  /// Six bits each for group i / 32, packed as in q4_K.
  static __device__ Scaling packed_scale_and_min(const Block& block, int i) {
    const int j = i / 32;
    const uint8_t* packed = block.scales;
    if (j < 4) return scale_and_min(block, packed[j] & 63, packed[j + 4] & 63);
    return scale_and_min(block, (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4,
                         packed[j + 4] >> 4 | packed[j] >> 6 << 4);
  }
};

}  // namespace formats

#define SHOAL_QUANTIZED_32(id, ...) \
  template <>                       \
  struct Quantized<DType::k##id> : formats::Of32<quants::Block##id> {};
#include "graph/dtypes.def"

template <>
struct Quantized<DType::kQ2_K> : formats::Of256<quants::BlockQ2_K> {
  static __device__ Scaling scaling(const Block& block, int i) {
    return scale_and_min(block, block.scales[i / 16] & 15, block.scales[i / 16] >> 4);
  }
  static __device__ Codes codes(const Block& block, int i) { return crumbs(block, i); }
};
template <>
struct Quantized<DType::kQ3_K> : formats::Of256<quants::BlockQ3_K> {
  static __device__ Scaling scaling(const Block& block, int i) {
    const int j = i / 16;
    const int low = block.scales[j % 8] >> (j / 8 * 4) & 15;
    const int high = block.scales[8 + j % 4] >> (j / 4 * 2) & 3;
    return only_scale(block, (low | high << 4) - 32);
  }
  static __device__ Codes codes(const Block& block, int i) {
    return minus(with_high_bits(crumbs(block, i), high_bits(block, i), 2), Block::kOffset);
  }
};
template <>
struct Quantized<DType::kQ4_K> : formats::Of256<quants::BlockQ4_K> {
  static __device__ Scaling scaling(const Block& block, int i) { return packed_scale_and_min(block, i); }
  static __device__ Codes codes(const Block& block, int i) { return nibbles(block, i); }
};
template <>
struct Quantized<DType::kQ5_K> : formats::Of256<quants::BlockQ5_K> {
  static __device__ Scaling scaling(const Block& block, int i) { return packed_scale_and_min(block, i); }
  static __device__ Codes codes(const Block& block, int i) {
    return with_high_bits(nibbles(block, i), high_bits(block, i), 4);
  }
};
template <>
struct Quantized<DType::kQ6_K> : formats::Of256<quants::BlockQ6_K> {
  static __device__ Scaling scaling(const Block& block, int i) { return only_scale(block, block.scales[i / 16]); }
  static __device__ Codes codes(const Block& block, int i) {
    const int half = i / 128, j = i / 32 % 4;
    const Codes low = bits_of(eight_bytes<Block>(block.nibbles + half * 64 + j % 2 * 32 + i % 32), j / 2 * 4, 4);
    return minus(with_high_bits(low, crumbs(block, i), 4), Block::kOffset);
  }
};

template <>
struct Quantized<DType::kIQ4_XS> : formats::Of256<quants::BlockIQ4_XS> {
  static __device__ Scaling scaling(const Block& block, int i) {
    const int j = i / 32;
    const int low = block.low_scales[j / 2] >> (j % 2 * 4) & 15, high = block.high_scales >> (2 * j) & 3;
    return only_scale(block, (low | high << 4) - 32);
  }
  static __device__ Codes codes(const Block& block, int i) {
    return levels_of<Block>(bits_of(eight_bytes<Block>(block.nibbles + i / 32 * 16 + i % 16), i / 16 % 2 * 4, 4));
  }
};

namespace formats {

/// Of graph/quants/codes.inc.
template <class B>
struct Coded : Common<B> {
  template <class From>
  static __device__ float scale_at(const From& from, int i) {
    const CodeScale scale = CodesOf<B>::scale(from, i / B::kGroup);
    return half_bits_to_float(static_cast<uint16_t>(scale.half)) * (static_cast<float>(scale.factor) * B::kUnit);
  }
  static __device__ Scaling scaling(const B& block, int i) { return {scale_at(BlockBytes(&block), i), 0}; }
  static __device__ Codes codes(const B& block, int i) { return CodesOf<B>::codes(BlockBytes(&block), i); }
};

}  // namespace formats

#define SHOAL_QUANTIZED_CODED(id, ...) \
  template <>                          \
  struct Quantized<DType::k##id> : formats::Coded<quants::Block##id> {};
#include "graph/dtypes.def"

/// scale * code + add, rounded as in graph/quants.
template <class Format>
__device__ inline float value_of(Scaling scaling, int code) {
  const Rounded scaled = Rounded(scaling.scale) * Rounded(static_cast<float>(code));
  return Format::kAdds ? scaled + Rounded(scaling.add) : scaled;
}
/// Code j < 8.
__device__ inline int code_at(Codes codes, int j) {
  return static_cast<int8_t>((j < 4 ? codes.low : codes.high) >> (j % 4 * 8));
}

/// Elements i .. i + 7, i a multiple of 8.
template <class Format>
__device__ inline void values_at(const typename Format::Block& block, int i, float (&to)[8]) {
  const Scaling scaling = Format::scaling(block, i);
  const Codes codes = Format::codes(block, i);
#pragma unroll
  for (int j = 0; j < 8; ++j) to[j] = value_of<Format>(scaling, code_at(codes, j));
}
/// Element i.
template <class Format>
__device__ inline float value_at(const typename Format::Block& block, int i) {
  return value_of<Format>(Format::scaling(block, i), code_at(Format::codes(block, i / 8 * 8), i % 8));
}

/// Element i of a row of blocks.
template <DType kType>
__device__ inline float quantized_at(const std::byte* row, int64_t i) {
  using Format = Quantized<kType>;
  const auto* blocks = reinterpret_cast<const typename Format::Block*>(row);
  return value_at<Format>(blocks[i / Format::kElements], static_cast<int>(i % Format::kElements));
}
/// Elements i .. i + 7 of it, i a multiple of 8.
template <DType kType>
__device__ inline void load_eight(const std::byte* row, int64_t i, float (&to)[8]) {
  using Format = Quantized<kType>;
  const auto* blocks = reinterpret_cast<const typename Format::Block*>(row);
  values_at<Format>(blocks[i / Format::kElements], static_cast<int>(i % Format::kElements), to);
}
/// The same of a dtype that only the launch knows, a float one (of rows aligned to 16 bytes) or a quantised one.
__device__ inline void load_eight(DType dtype, const std::byte* row, int64_t i, float (&to)[8]) {
  switch (dtype) {
    case DType::kF32:
      return load_floats<float>(row + i * 4, to);
    case DType::kF16:
      return load_floats<__half>(row + i * 2, to);
    case DType::kBF16:
      return load_floats<__nv_bfloat16>(row + i * 2, to);
#define SHOAL_QUANTIZED(id, ...) \
  case DType::k##id:             \
    return load_eight<DType::k##id>(row, i, to);
#include "graph/dtypes.def"
    default:
      return;
  }
}
/// One of eight values in registers.
__device__ inline float pick(const float (&values)[8], int64_t i) {
  float found = values[0];
#pragma unroll
  for (int j = 1; j < 8; ++j) found = i == j ? values[j] : found;
  return found;
}

}  // namespace shoal::cuda
