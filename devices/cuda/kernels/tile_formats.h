// Conversion of quantised rows to tiles of 16-bit floats. Blocks are first copied to shared memory without conversion
// (StagedRow). Threads then read 32 elements at a time (Unit32 of dequantize.h). Each element is
//   (code - kOffset) * scale + add
// with a code of at most 8 bits. So the code, the difference and usually the product are exact in halves. The scales of
// most formats are halves times small integers. Every value is then a multiple of 2^-24, so subnormal halves lose
// nothing. Scales that are arbitrary powers of two (kBf16) would overflow halves. Tiles of such formats are bf16. In
// bf16, codes of at most 7 bits, their differences and their products are exact.
//
// Blocks are aligned to only 1 or 2 bytes, so a row is copied as the 16-byte chunks that cover it. Chunk c of row r is
// stored at position c ^ swizzle(r). So chunks c of eight consecutive rows are in different banks.
#pragma once

#include "devices/cuda/kernels/dequantize.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/platform.h"
#include "graph/quants/blocks.h"

namespace shoal::cuda {

inline constexpr int kChunkBytes = 16;

/// Returns the swizzle of a row with `chunks` chunks. The index of each chunk is XORed with the swizzle. The swizzle
/// contains only bits below the largest power of two (at most 8) that divides `chunks`.
///   10 chunks: rows 0..3 begin at bank groups 0, 2, 4, 6 (of 8); rows 4..7, flipped by 1, at 1, 3, 5, 7
__host__ __device__ constexpr uint32_t chunk_swizzle(uint32_t chunks, uint32_t row) {
  const uint32_t factor = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1;
  return row / (8 / factor) & (factor - 1);
}

/// A part of a row of `a`, copied to shared memory. The first byte of this part is `offset` bytes after the start of
/// the chunks.
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

  /// Loads 4 * kWords bytes that begin at byte `byte` of the part. The address may have any alignment.
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
  /// Loads 4 * kWords bytes that begin at byte `byte` of the part. This byte must be the first byte of a chunk.
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

namespace tile_formats {

/// Copies bit j of `bits` to bit 4 of byte j. `bits` must be less than 16.
__device__ inline uint32_t fifth_bits(uint32_t bits) {
  return (bits * 0x00204081u & 0x01010101u) << 4;
}

/// Formats with 32 elements per block. In formats with nibbles, byte j holds element j in its low nibble and element j
/// + 16 in its high nibble. To make codes unsigned, 128 is added to signed bytes and to levels. In bf16 tiles, 64 is
/// added to levels instead.
template <class B>
struct Of32 {
  using Block = B;
  static constexpr bool kAligned = false;
  static constexpr int kBlocksPerGroup = 4;  ///< number of consecutive blocks of a row that are copied together (128
                                             ///< elements)
  static constexpr int kUnitsPerBlock = 1;
  static constexpr int kScaleBytes = sizeof(B::scale);
  static constexpr bool kBf16 = kScaleBytes == 1;
  static constexpr int kOffset = kBf16 ? 64 : B::kBits == 8 || quants::kHasLevels<B> ? 128 : B::kOffset;
  static constexpr bool kAdds = B::kAdds;

  static __device__ void read(const StagedRow& row, int begin, uint32_t, Unit32& unit) {
    if constexpr (kBf16) {
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

/// Coded formats of graph/quants/codes.inc. To make codes unsigned, 128 is added to the codes.
template <class B>
struct Coded {
  using Block = B;
  static constexpr bool kBf16 = false, kAdds = false, kAligned = false;
  static constexpr int kOffset = 128;
  static constexpr int kBlocksPerGroup = B::kElements < 128 ? 128 / B::kElements : 1;
  static constexpr int kUnitsPerBlock = B::kElements / 32;

  /// A block of a staged row.
  struct Staged {
    const StagedRow& row;
    int begin;
    __device__ uint32_t byte(int i) const { return *row.at(begin + i); }
    __device__ uint32_t half(int i) const { return row.two_bytes(begin + i); }
  };

  static __device__ void read(const StagedRow& row, int begin, uint32_t j, Unit32& unit) {
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

#define SHOAL_QUANTIZED_32(id, ...) using id = Of32<quants::Block##id>;
#define SHOAL_QUANTIZED_256(id, ...) using formats::id;
#define SHOAL_QUANTIZED_CODED(id, ...) using id = Coded<quants::Block##id>;
#include "graph/dtypes.def"

}  // namespace tile_formats
}  // namespace shoal::cuda
