// Values of GGUF's quantised blocks (graph/quants/blocks.h) on the device. Every element is
//   scale * code + add
// with a small integer code. The elements of a group (16 or 32) share `scale` and `add`. The product and the sum are
// rounded separately and never fused, so that values are the same as in graph/quants, bit for bit.
//
//   using Q = Quantized<DType::kQ4_K>;
//   const Q::Block* blocks = ...;
//   float values[8];
//   values_at<Q>(blocks[b], i, values);         // elements i .. i + 7, i a multiple of 8
//   const Scaling s = Q::scaling(blocks[b], i);  // or separately, for integer products: scale and add,
//   const Codes c = Q::codes(blocks[b], i);      // and the codes, eight signed bytes
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
/// 2^(power - 128), which is denormal for powers 0 and 1.
__device__ inline float power_to_float(uint32_t power) {
  return std::bit_cast<float>(power < 2 ? 0x200000u << power : (power - 1) << 23);
}
/// The scale of a block as a float.
__device__ inline float scale_to_float(uint16_t half) {
  return half_bits_to_float(half);
}
__device__ inline float scale_to_float(uint8_t power) {
  return power_to_float(power);
}

/// The scale and the addend of one group of elements.
struct Scaling {
  float scale;
  float add;  ///< 0 for formats without an addend (kAdds == false)
};

/// Loads eight bytes of a block. Each load reads as many bytes as the block's alignment allows: 1 byte if the block's
/// size is odd, 4 bytes if the size is a multiple of 4, else 2 bytes. Blocks are contiguous, and the first block is
/// aligned to 16 bytes.
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

/// Extracts `count` bits of each byte, starting at bit `first`.
__device__ inline Codes bits_of(Codes bytes, int first, int count) {
  const uint32_t mask = ((1u << count) - 1) * 0x01010101u;
  return {bytes.low >> first & mask, bytes.high >> first & mask};
}
/// Returns a | b << shift. Bits of `b` must not be shifted out of their bytes.
__device__ inline Codes with_high_bits(Codes a, Codes b, int shift) {
  return {a.low | b.low << shift, a.high | b.high << shift};
}
/// Subtracts `value` <= 128 from bytes in 0..127. The differences are signed bytes.
__device__ inline Codes minus(Codes bytes, uint32_t value) {
  const uint32_t all = value * 0x01010101u, top = 0x80808080u;
  return {((bytes.low | top) - all) ^ top, ((bytes.high | top) - all) ^ top};
}
/// Expands bit j of `bits` to byte j, which becomes 0 or 1.
__device__ inline Codes spread(uint32_t bits) {
  return {((bits & 15) * 0x00204081u) & 0x01010101u, ((bits >> 4 & 15) * 0x00204081u) & 0x01010101u};
}

/// Returns a word whose four bytes are the elements kFirst .. kFirst + 3 of Block::kLevels, each plus kBias.
template <class Block, int kFirst, int kBias>
inline constexpr uint32_t kFourLevels = [] {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= static_cast<uint32_t>(static_cast<uint8_t>(Block::kLevels[kFirst + i] + kBias)) << 8 * i;
  }
  return word;
}();
/// Looks up kLevels[code] + kBias for four codes (each below 16), which are the bytes of `codes`.
template <class Block, int kBias = 0>
__device__ inline uint32_t levels_of(uint32_t codes) {
  // __byte_perm uses three bits of a nibble to select one of eight bytes. There are 16 levels, so each code is looked
  // up in the lower eight levels and in the upper eight levels.
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

/// 32 elements. Element i has the code in byte i % 4 of codes[i / 4], the scale scale[i / 16] and the addend add[i /
/// 16].
struct Unit32 {
  uint32_t codes[8];
  float scale[2], add[2];

  __device__ void set_scaling(float all_scale, float all_add = 0) {
    scale[0] = scale[1] = all_scale;
    add[0] = add[1] = all_add;
  }
  __device__ void set_zero(uint32_t offset) {
#pragma unroll
    for (uint32_t& code : codes) code = offset * 0x01010101u;
    set_scaling(0);
  }
};

/// A block at an address aligned to two bytes.
struct PlainBlock {
  const uint8_t* bytes;

  __device__ uint16_t two_bytes(int at) const { return load_as<uint16_t>(bytes + at); }
  __device__ float half(int at) const { return half_bits_to_float(two_bytes(at)); }
  template <int kWords>
  __device__ void words(int at, uint32_t (&to)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      to[i] = two_bytes(at + 4 * i) | static_cast<uint32_t>(two_bytes(at + 4 * i + 2)) << 16;
    }
  }
  template <int kWords>
  __device__ void aligned_words(int at, uint32_t (&to)[kWords]) const {
    words(at, to);
  }
};

/// A quantised format. `Block` is the type of its blocks. scaling(block, i) returns the scaling of element i's group.
/// codes(block, i) returns the codes of elements i .. i + 7, where i is a multiple of 8. The constants kElements,
/// kGroup (elements per scaling) and kAdds equal the constants of the block.
template <DType kType>
struct Quantized;

namespace formats {

/// Members that all formats share.
template <class B>
struct Common {
  using Block = B;
  static constexpr int kElements = B::kElements, kGroup = B::kGroup;
  static constexpr bool kAdds = B::kAdds;
};

/// Formats with 32 elements per block. In formats with nibbles, byte j holds element j in its low nibble and element j
/// + 16 in its high nibble.
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

/// Formats with 256 elements per block. A PlainBlock or a StagedRow (tile_formats.h) supplies the bytes of 32 elements
/// at a time.
template <class B>
struct Of256 {
  using Block = B;
  static constexpr bool kAligned = sizeof(B) % 16 == 0;  ///< whether every block of a staged row begins at the start of
                                                         ///< a 16-byte chunk
  static constexpr bool kBf16 = false;
  static constexpr int kOffset = quants::kHasLevels<B> ? 128 : B::kOffset;  ///< bias that all codes include
  static constexpr bool kAdds = B::kAdds;
  static constexpr int kBlocksPerGroup = 1;
  static constexpr int kUnitsPerBlock = 8;
  /// Loads 32 bytes, shifts each byte right by `shift`, and keeps the bits of `mask`.
  template <class From>
  static __device__ void fields(const From& row, int byte, int shift, uint32_t mask, uint32_t (&codes)[8]) {
    load(row, byte, codes);
#pragma unroll
    for (uint32_t& code : codes) code = code >> shift & mask;
  }
  template <class From>
  static __device__ void load(const From& row, int byte, uint32_t (&to)[8]) {
    if constexpr (kAligned) {
      row.aligned_words(byte, to);
    } else {
      row.words(byte, to);
    }
  }
};

struct Q2_K : Of256<quants::BlockQ2_K> {
  template <class From>
  static __device__ void read(const From& row, int begin, uint32_t j, Unit32& unit) {
    const float factor = row.half(begin + 80), min_factor = row.half(begin + 82);
    const uint32_t scales = row.two_bytes(begin + 2 * j);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unit.scale[i] = factor * static_cast<float>(scales >> 8 * i & 15);
      unit.add[i] = -min_factor * static_cast<float>(scales >> (8 * i + 4) & 15);
    }
    fields(row, begin + 16 + j / 4 * 32, j % 4 * 2, 0x03030303, unit.codes);
  }
};

struct Q3_K : Of256<quants::BlockQ3_K> {
  template <class From>
  static __device__ void read(const From& row, int begin, uint32_t j, Unit32& unit) {
    const float factor = row.half(begin + 108);
    // Reads scales 2j and 2j + 1 together, because these two scales are adjacent in memory.
    const uint32_t low = row.two_bytes(begin + 96 + 2 * j % 8) >> j / 4 * 4;
    const uint32_t high = row.two_bytes(begin + 104 + 2 * j % 4) >> j / 2 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t scale = (low >> 8 * i & 15) | (high >> 8 * i & 3) << 4;
      unit.scale[i] = factor * static_cast<float>(static_cast<int>(scale) - 32);
      unit.add[i] = 0;
    }
    fields(row, begin + 32 + j / 4 * 32, j % 4 * 2, 0x03030303, unit.codes);
    uint32_t bits[8];
    fields(row, begin, j, 0x01010101, bits);
#pragma unroll
    for (int i = 0; i < 8; ++i) unit.codes[i] |= bits[i] << 2;
  }
};

/// Formats with 8 sub-blocks of 32 elements. Each sub-block has a 6-bit scale and a 6-bit minimum.
template <class B>
struct Of256With6Bits : Of256<B> {
  template <class From>
  static __device__ void scaling(const From& row, int begin, uint32_t j, Unit32& unit) {
    uint32_t head[4];  // two factors and twelve bytes of scales
    row.aligned_words(begin, head);
    const uint32_t at = j % 4 * 8;
    uint32_t scale = head[1] >> at & 63, min = head[2] >> at & 63;
    if (j >= 4) {
      scale = (head[3] >> at & 15) | (head[1] >> at & 0xc0) >> 2;
      min = (head[3] >> at >> 4 & 15) | (head[2] >> at & 0xc0) >> 2;
    }
    const __half factor = __ushort_as_half(static_cast<uint16_t>(head[0]));
    const __half min_factor = __ushort_as_half(static_cast<uint16_t>(head[0] >> 16));
    unit.set_scaling(__half2float(factor) * static_cast<float>(scale),
                     -__half2float(min_factor) * static_cast<float>(min));
  }
};

struct Q4_K : Of256With6Bits<quants::BlockQ4_K> {
  template <class From>
  static __device__ void read(const From& row, int begin, uint32_t j, Unit32& unit) {
    scaling(row, begin, j, unit);
    fields(row, begin + 16 + j / 2 * 32, j % 2 * 4, 0x0f0f0f0f, unit.codes);
  }
};

struct Q5_K : Of256With6Bits<quants::BlockQ5_K> {
  template <class From>
  static __device__ void read(const From& row, int begin, uint32_t j, Unit32& unit) {
    scaling(row, begin, j, unit);
    fields(row, begin + 48 + j / 2 * 32, j % 2 * 4, 0x0f0f0f0f, unit.codes);
    uint32_t bits[8];
    fields(row, begin + 16, j, 0x01010101, bits);
#pragma unroll
    for (int i = 0; i < 8; ++i) unit.codes[i] |= bits[i] << 4;
  }
};

struct Q6_K : Of256<quants::BlockQ6_K> {
  template <class From>
  static __device__ void read(const From& row, int begin, uint32_t sub, Unit32& unit) {
    const uint32_t half = sub / 4, j = sub % 4;
    const float factor = row.half(begin + 208);
    const uint32_t scales = row.two_bytes(begin + 192 + 2 * sub);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unit.scale[i] = factor * static_cast<float>(static_cast<int8_t>(scales >> 8 * i));
      unit.add[i] = 0;
    }
    fields(row, begin + half * 64 + j % 2 * 32, j / 2 * 4, 0x0f0f0f0f, unit.codes);
    uint32_t bits[8];
    fields(row, begin + 128 + half * 32, j * 2, 0x03030303, bits);
#pragma unroll
    for (int i = 0; i < 8; ++i) unit.codes[i] |= bits[i] << 4;
  }
};

struct IQ4_XS : Of256<quants::BlockIQ4_XS> {
  template <class From>
  static __device__ void read(const From& row, int begin, uint32_t j, Unit32& unit) {
    uint32_t head[2], w[4];
    row.words(begin, head);
    row.words(begin + 8 + 16 * static_cast<int>(j), w);
    const uint32_t scale = (head[1] >> 4 * j & 15) | (head[0] >> (16 + 2 * j) & 3) << 4;
    const __half factor = __ushort_as_half(static_cast<uint16_t>(head[0]));
    unit.set_scaling(__half2float(factor) * static_cast<float>(static_cast<int>(scale) - 32));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unit.codes[i] = levels_of<Block, kOffset>(w[i] & 0x0f0f0f0f);
      unit.codes[i + 4] = levels_of<Block, kOffset>(w[i] >> 4 & 0x0f0f0f0f);
    }
  }
};

/// Adapts a format `F` with 256 elements per block to the interface of Quantized, for blocks in global memory.
template <class F>
struct By32 : Common<typename F::Block> {
  using Block = typename F::Block;
  static __device__ Unit32 unit_of(const Block& block, int i) {
    Unit32 unit;
    F::read(PlainBlock{reinterpret_cast<const uint8_t*>(&block)}, 0, i / 32, unit);
    return unit;
  }
  static __device__ Scaling scaling(const Block& block, int i) {
    const Unit32 unit = unit_of(block, i);
    return i % 32 < 16 ? Scaling{unit.scale[0], unit.add[0]} : Scaling{unit.scale[1], unit.add[1]};
  }
  static __device__ Codes codes(const Block& block, int i) {
    const Unit32 unit = unit_of(block, i);
    Codes found{};
#pragma unroll
    for (int word = 0; word < 8; word += 2) {
      if (i % 32 / 4 == word) found = {unit.codes[word], unit.codes[word + 1]};
    }
    if constexpr (F::kOffset == 128) return {found.low ^ 0x80808080, found.high ^ 0x80808080};
    return minus(found, F::kOffset);
  }
};

}  // namespace formats

#define SHOAL_QUANTIZED_32(id, ...) \
  template <>                       \
  struct Quantized<DType::k##id> : formats::Of32<quants::Block##id> {};
#define SHOAL_QUANTIZED_256(id, ...) \
  template <>                        \
  struct Quantized<DType::k##id> : formats::By32<formats::id> {};
#define SHOAL_QUANTIZED_CODED(...)
#include "graph/dtypes.def"

namespace formats {

/// A format of graph/quants/codes.inc. CodesOf decodes a block's bits to codes (small integers), for example with a
/// codebook.
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

#define SHOAL_QUANTIZED_32(...)
#define SHOAL_QUANTIZED_256(...)
#define SHOAL_QUANTIZED_CODED(id, ...) \
  template <>                          \
  struct Quantized<DType::k##id> : formats::Coded<quants::Block##id> {};
#include "graph/dtypes.def"

/// Returns scale * code + add, rounded as in graph/quants.
template <class Format>
__device__ inline float value_of(Scaling scaling, int code) {
  const Rounded scaled = Rounded(scaling.scale) * Rounded(static_cast<float>(code));
  return Format::kAdds ? scaled + Rounded(scaling.add) : scaled;
}
/// Returns code j of the eight codes; j < 8.
__device__ inline int code_at(Codes codes, int j) {
  return static_cast<int8_t>((j < 4 ? codes.low : codes.high) >> (j % 4 * 8));
}

/// Loads elements i .. i + 7 of a block; i is a multiple of 8.
template <class Format>
__device__ inline void values_at(const typename Format::Block& block, int i, float (&to)[8]) {
  const Scaling scaling = Format::scaling(block, i);
  const Codes codes = Format::codes(block, i);
#pragma unroll
  for (int j = 0; j < 8; ++j) to[j] = value_of<Format>(scaling, code_at(codes, j));
}
/// Returns element i of a block.
template <class Format>
__device__ inline float value_at(const typename Format::Block& block, int i) {
  return value_of<Format>(Format::scaling(block, i), code_at(Format::codes(block, i / 8 * 8), i % 8));
}

/// Returns element i of a row of blocks.
template <DType kType>
__device__ inline float quantized_at(const std::byte* row, int64_t i) {
  using Format = Quantized<kType>;
  const auto* blocks = reinterpret_cast<const typename Format::Block*>(row);
  return value_at<Format>(blocks[i / Format::kElements], static_cast<int>(i % Format::kElements));
}
/// Loads elements i .. i + 7 of a row of blocks; i is a multiple of 8.
template <DType kType>
__device__ inline void load_eight(const std::byte* row, int64_t i, float (&to)[8]) {
  using Format = Quantized<kType>;
  const auto* blocks = reinterpret_cast<const typename Format::Block*>(row);
  values_at<Format>(blocks[i / Format::kElements], static_cast<int>(i % Format::kElements), to);
}
/// Loads elements i .. i + 7 of a row whose dtype is known only at the launch. The dtype is quantised, or it is a float
/// type and rows are aligned to 16 bytes.
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
/// Returns values[i]. No array index is computed at run time, so compilers keep the array in registers.
__device__ inline float pick(const float (&values)[8], int64_t i) {
  float found = values[0];
#pragma unroll
  for (int j = 1; j < 8; ++j) found = i == j ? values[j] : found;
  return found;
}

}  // namespace shoal::cuda
