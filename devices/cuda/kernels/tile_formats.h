// Quantised rows on their way into tiles of 16-bit floats: blocks copied as they are into shared memory (a StagedRow),
// from there read 32 elements at a time (a Unit), each of which is
//   (code - kOffset) * scale + add
// with codes of at most 8 bits, so that code, difference and usually the product are exact in halves. The scales of
// most formats are halves times small integers: every value is a multiple of 2^-24, and where a half would be subnormal
// nothing is lost. Scales that are any power of two (kBrain) would overflow: there tiles are bf16, in which codes of
// at most 7 bits, differences and products are exact.
//
// Blocks have an alignment of 2 or 1 only, so a row is copied as the chunks of 16 bytes that cover it. Chunk c of row r
// lies at place c ^ swizzle(r), such that eight rows next to each other have the same chunk in different banks.
#pragma once

#include "devices/cuda/kernels/dequantize.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/platform.h"
#include "graph/quants/blocks.h"

namespace shoal::cuda {

inline constexpr int kChunkBytes = 16;

/// For rows of `chunks` chunks: flips within the largest power of two that divides their number.
///   10 chunks: rows 0..3 lie at banks 0, 2, 4, 6 (of 8 groups of banks), rows 4..7, flipped by 1, at 1, 3, 5, 7
__host__ __device__ constexpr uint32_t chunk_swizzle(uint32_t chunks, uint32_t row) {
  const uint32_t factor = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1;
  return row / (8 / factor) & (factor - 1);
}

/// A part of a row of a: its first byte is `offset` bytes into the chunks.
struct StagedRow {
  const uint8_t* chunks;
  uint32_t swizzle;
  int offset;

  __device__ const uint8_t* at(int byte) const {
    const auto place = static_cast<uint32_t>(offset + byte);
    return chunks + ((place / kChunkBytes ^ swizzle) * kChunkBytes + place % kChunkBytes);
  }
  __device__ uint16_t two_bytes(int byte) const { return load_as<uint16_t>(at(byte)); }
  __device__ float half(int byte) const { return __half2float(load_as<__half>(at(byte))); }

  /// 4 * kWords bytes from any address on.
  template <int kWords>
  __device__ void words(int byte, uint32_t (&to)[kWords]) const {
    constexpr int kChunks = (4 * kWords + 15 + kChunkBytes - 1) / kChunkBytes;
    const auto place = static_cast<uint32_t>(offset + byte);
    uint32_t w[4 * kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint32_t chunk = (place / kChunkBytes + i) ^ swizzle;
      const uint4 four = load_as<uint4>(chunks + chunk * kChunkBytes);
      w[4 * i] = four.x, w[4 * i + 1] = four.y, w[4 * i + 2] = four.z, w[4 * i + 3] = four.w;
    }
    shift_down<2>(w, place & 8);
    shift_down<1>(w, place & 4);
    const uint32_t selector = 0x3210 + 0x1111 * (place & 3);
#pragma unroll
    for (int i = 0; i < kWords; ++i) to[i] = __byte_perm(w[i], w[i + 1], selector);
  }
  /// The same of chunks that begin at `byte`.
  template <int kWords>
  __device__ void aligned_words(int byte, uint32_t (&to)[kWords]) const {
    static_assert(kWords % 4 == 0);
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 four = load_as<uint4>(at(byte + i * kChunkBytes));
      to[4 * i] = four.x, to[4 * i + 1] = four.y, to[4 * i + 2] = four.z, to[4 * i + 3] = four.w;
    }
  }

 private:
  template <int kBy, int kCount>
  static __device__ void shift_down(uint32_t (&w)[kCount], bool shift) {
#pragma unroll
    for (int i = 0; i + kBy < kCount; ++i) w[i] = shift ? w[i + kBy] : w[i];
  }
};

/// 32 elements: byte i % 4 of codes[i / 4], scale[i / 16], add[i / 16].
struct Unit {
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

namespace tile_formats {

/// Bit j of `bits` < 16 as bit 4 of byte j.
__device__ inline uint32_t fifth_bits(uint32_t bits) {
  return (bits * 0x00204081u & 0x01010101u) << 4;
}

/// The formats of 32 elements: byte j has element j in its low and element j + 16 in its high nibble. Signed bytes have
/// 128 added, levels 64 where tiles are bf16.
template <class B>
struct Of32 {
  using Block = B;
  static constexpr bool kAligned = false;
  static constexpr int kBlocksPerGroup = 4;  ///< blocks of a row that are copied together: 128 elements
  static constexpr int kUnitsPerBlock = 1;
  static constexpr int kScaleBytes = sizeof(B::scale);
  static constexpr bool kBrain = kScaleBytes == 1;
  static constexpr int kOffset = kBrain ? 64 : B::kBits == 8 || quants::kHasLevels<B> ? 128 : B::kOffset;
  static constexpr bool kAdds = B::kAdds;

  static __device__ void read(const StagedRow& row, int begin, uint32_t, Unit& unit) {
    if constexpr (kBrain) {
      unit.set_scaling(power_to_float(*row.at(begin)));
    } else {
      unit.set_scaling(row.half(begin), kAdds ? row.half(begin + 2) : 0);
    }
    const int from = begin + (kAdds ? 4 : kScaleBytes);
    if constexpr (B::kBits == 8) {
      row.words(from, unit.codes);
#pragma unroll
      for (uint32_t& code : unit.codes) code ^= 0x80808080;
    } else if constexpr (B::kBits == 5) {
      nibbles(row, from + 4, unit.codes);
      add_fifth_bits(row, from, unit.codes);
    } else {
      nibbles(row, from, unit.codes);
    }
    if constexpr (quants::kHasLevels<B>) {
#pragma unroll
      for (uint32_t& code : unit.codes) code = levels_of<B, kOffset>(code);
    }
  }

 private:
  static __device__ void nibbles(const StagedRow& row, int byte, uint32_t (&codes)[8]) {
    uint32_t w[4];
    row.words(byte, w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      codes[i] = w[i] & 0x0f0f0f0f;
      codes[i + 4] = w[i] >> 4 & 0x0f0f0f0f;
    }
  }
  static __device__ void add_fifth_bits(const StagedRow& row, int byte, uint32_t (&codes)[8]) {
    const uint32_t bits = row.two_bytes(byte) | static_cast<uint32_t>(row.two_bytes(byte + 2)) << 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) codes[i] |= fifth_bits(bits >> 4 * i & 15);
  }
};

#define SHOAL_QUANTIZED_32(id, ...) using id = Of32<quants::Block##id>;
#include "graph/dtypes.def"

/// What formats of 256 elements share.
template <class B>
struct Of256 {
  using Block = B;
  static constexpr bool kAligned = sizeof(B) % kChunkBytes == 0;  ///< blocks begin with a chunk
  static constexpr bool kBrain = false;
  static constexpr int kOffset = quants::kHasLevels<B> ? 128 : B::kOffset;
  static constexpr bool kAdds = B::kAdds;
  static constexpr int kBlocksPerGroup = 1;
  static constexpr int kUnitsPerBlock = 8;
  /// `mask` of each byte of 32 bytes, shifted down by `shift`.
  static __device__ void fields(const StagedRow& row, int byte, int shift, uint32_t mask, uint32_t (&codes)[8]) {
    load(row, byte, codes);
#pragma unroll
    for (uint32_t& code : codes) code = code >> shift & mask;
  }
  static __device__ void load(const StagedRow& row, int byte, uint32_t (&to)[8]) {
    if constexpr (kAligned) {
      row.aligned_words(byte, to);
    } else {
      row.words(byte, to);
    }
  }
};

struct Q2_K : Of256<quants::BlockQ2_K> {
  static __device__ void read(const StagedRow& row, int begin, uint32_t j, Unit& unit) {
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
  static __device__ void read(const StagedRow& row, int begin, uint32_t j, Unit& unit) {
    const float factor = row.half(begin + 108);
    // Scales 2j and 2j + 1 lie beside each other.
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

/// 8 sub-blocks of 32 with 6-bit scales and minima.
template <class B>
struct Of256With6Bits : Of256<B> {
  static __device__ void scaling(const StagedRow& row, int begin, uint32_t j, Unit& unit) {
    uint32_t head[4];  // two factors, twelve bytes
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
  static __device__ void read(const StagedRow& row, int begin, uint32_t j, Unit& unit) {
    scaling(row, begin, j, unit);
    fields(row, begin + 16 + j / 2 * 32, j % 2 * 4, 0x0f0f0f0f, unit.codes);
  }
};

struct Q5_K : Of256With6Bits<quants::BlockQ5_K> {
  static __device__ void read(const StagedRow& row, int begin, uint32_t j, Unit& unit) {
    scaling(row, begin, j, unit);
    fields(row, begin + 48 + j / 2 * 32, j % 2 * 4, 0x0f0f0f0f, unit.codes);
    uint32_t bits[8];
    fields(row, begin + 16, j, 0x01010101, bits);
#pragma unroll
    for (int i = 0; i < 8; ++i) unit.codes[i] |= bits[i] << 4;
  }
};

struct Q6_K : Of256<quants::BlockQ6_K> {
  static __device__ void read(const StagedRow& row, int begin, uint32_t sub, Unit& unit) {
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
  static __device__ void read(const StagedRow& row, int begin, uint32_t j, Unit& unit) {
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

/// Of graph/quants/codes.inc; codes have 128 added.
template <class B>
struct Coded {
  using Block = B;
  static constexpr bool kBrain = false, kAdds = false, kAligned = false;
  static constexpr int kOffset = 128;
  static constexpr int kBlocksPerGroup = B::kElements < 128 ? 128 / B::kElements : 1;
  static constexpr int kUnitsPerBlock = B::kElements / 32;

  /// A block of a row.
  struct Staged {
    const StagedRow& row;
    int begin;
    __device__ uint32_t byte(int i) const { return *row.at(begin + i); }
    __device__ uint32_t half(int i) const { return row.two_bytes(begin + i); }
  };

  static __device__ void read(const StagedRow& row, int begin, uint32_t j, Unit& unit) {
    const Staged from{row, begin};
    const int first = static_cast<int>(j) * 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unit.scale[i] = i == 1 && B::kGroup == 32 ? unit.scale[0] : formats::Coded<B>::scale_at(from, first + 16 * i);
      unit.add[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Codes codes = CodesOf<B>::codes(from, first + 8 * i);
      unit.codes[2 * i] = codes.low ^ 0x80808080;
      unit.codes[2 * i + 1] = codes.high ^ 0x80808080;
    }
  }
};

#define SHOAL_QUANTIZED_CODED(id, ...) using id = Coded<quants::Block##id>;
#include "graph/dtypes.def"

}  // namespace tile_formats
}  // namespace shoal::cuda
