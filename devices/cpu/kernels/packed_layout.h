// Packed weights store the rows of a matrix in groups. A group interleaves kLanes rows. A vector contains one 32-bit
// word of each row, or one number of each row (see below). Nothing is decoded or rounded. A group contains the bytes of
// its rows in another order, so unpacking restores the rows exactly.
//
// A block consists of *numbers* and 32-bit words. A number is the scale, the minimum, or a field that does not fill a
// word. Each number of a block has as many bytes as the block's scale.
//
// A group of quantised rows is a sequence of units. If blocks have 256 elements, a unit contains one block of every
// row. If blocks have 32 elements, a unit contains two blocks of every row, or four blocks for MXFP4. The scales of
// these blocks have four bytes per row. A unit begins with the numbers of its blocks, one vector for each number.
// Padding follows, up to a multiple of sizeof(Bytes). Then the unit contains the words of its blocks, one vector for
// each word. Example: a Q4_0 unit for 16 rows contains 2 x 32 bytes of scales, then 4 + 4 vectors of 64 bytes. Byte j
// of a block's nibbles is in vector j / 4 of this block, at byte j % 4 of the row's lane.
//
// stored_word() converts two kinds of words. It converts signed bytes to the form that quad_dot() expects. It also
// rearranges fifth bits: bit q of byte b in the stored word is the fifth bit of element 4 q + b.
//
// A group of float rows stores element i of all rows in one vector (packed_rows.h).
#pragma once

#include "devices/cpu/kernels/formats.h"
#include "devices/cpu/kernels/quad_dot.h"

namespace shoal::cpu::SHOAL_ISA {

/// Byte positions and counts of a block's numbers (scales, minima and small fields) and of its 32-bit words. The
/// numbers are at the beginning or at the end of the block.
template <class Block>
struct BlockParts {
  using Number = decltype(Block::scale);
  static constexpr int kNumberBytes = sizeof(Number), kNumbersAt = offsetof(Block, scale);
  static constexpr int kNumbers = static_cast<int>(sizeof(Block)) % 4 == 0 ? 4 / kNumberBytes : 1;
  static constexpr int kWordsAt = kNumbersAt == 0 ? kNumberBytes * kNumbers : 0;
  static constexpr int kWords = (static_cast<int>(sizeof(Block)) - kNumberBytes * kNumbers) / 4;
};

/// An NVFP4 block begins with four one-byte scales.
template <>
struct BlockParts<quants::BlockNVFP4> {
  using Number = uint8_t;
  static constexpr int kNumberBytes = 1, kNumbersAt = 0, kNumbers = 4, kWordsAt = 4, kWords = 8;
};

template <class Format>
struct PackedLayout : BlockParts<typename Format::Block> {
  using Parts = BlockParts<typename Format::Block>;
  using Block = typename Format::Block;
  static constexpr int kBlocks = Format::kParts == 1 ? 4 / Parts::kNumberBytes : 1;  ///< number of blocks of a row in a
                                                                                     ///< unit
  static constexpr int kParts = kBlocks * Format::kParts;                            ///< number of 32-element parts of
                                                                                     ///< a row in a unit
  static constexpr size_t kVectorBytes = kLanes * Parts::kNumberBytes;               ///< bytes of a vector that
                                                                                     ///< contains one number of each
                                                                                     ///< row
  static constexpr size_t kWordsFrom =
      (kBlocks * Parts::kNumbers * kVectorBytes + sizeof(Bytes) - 1) / sizeof(Bytes) * sizeof(Bytes);
  static constexpr size_t kBytes = kWordsFrom + kBlocks * Parts::kWords * sizeof(Bytes);
  static_assert(sizeof(Block) == Parts::kNumberBytes * Parts::kNumbers + 4 * Parts::kWords);

  static constexpr size_t number_at(int block, int i) { return (block * Parts::kNumbers + i) * kVectorBytes; }
  static constexpr size_t word_at(int block, int i) { return kWordsFrom + (block * Parts::kWords + i) * sizeof(Bytes); }
  static int64_t units(int64_t k) { return (k / 32 + kParts - 1) / kParts; }
};

/// Whether the first word of a block contains fifth bits.
template <class Format>
inline constexpr bool kHasFifthBits = Format::kParts == 1 && Format::Block::kBits == 5;

/// Moves bit 4 q + b of every lane to bit 8 b + q. fifth_bits_of_bytes() is the inverse.
inline I32 fifth_bits_to_bytes(I32 words) {
  I32 bytes = {};
  for (int b = 0; b < 4; ++b) {
    for (int q = 0; q < 8; ++q) bytes |= ((words >> (4 * q + b)) & 1) << (8 * b + q);
  }
  return bytes;
}
inline uint32_t fifth_bits_of_bytes(uint32_t bytes) {
  uint32_t word = 0;
  for (uint32_t i = 0; i < 32; ++i) word |= (bytes >> (8 * (i % 4) + i / 4) & 1) << i;
  return word;
}

/// For every row, converts word i of the row's block to the form that a group stores.
template <class Format>
inline I32 stored_word(I32 word, int i) {
  if constexpr (Format::kParts == 1 && Format::Block::kBits == 8) {
    if constexpr (kWeightBias != 0) return word ^ static_cast<int32_t>(0x80808080u);
  }
  if constexpr (kHasFifthBits<Format>) return i == 0 ? fifth_bits_to_bytes(word) : word;
  return word;
}
/// The inverse of stored_word(), for one row.
template <class Format>
inline uint32_t restored_word(uint32_t word, int i) {
  if constexpr (Format::kParts == 1 && Format::Block::kBits == 8) {
    if constexpr (kWeightBias != 0) return word ^ 0x80808080u;
  }
  if constexpr (kHasFifthBits<Format>) return i == 0 ? fifth_bits_of_bytes(word) : word;
  return word;
}

}  // namespace shoal::cpu::SHOAL_ISA
