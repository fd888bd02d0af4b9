// Packed weights: the rows of a matrix in groups of kLanes, each group's rows side by side, so that one vector has the
// same four bytes (or the same number) of all rows. Nothing is decoded or rounded: a group has the bytes of its rows in
// another order, and comes back as it was.
//
// A group of quantised rows is a sequence of units: one block of 256 elements of every row, or as many blocks of 32 as
// have four bytes of scales, two or (MXFP4) four. A block is some numbers of the size of its scale and some 32-bit
// words. A unit has the numbers of its blocks, one vector each, and from the next full vector on the words of its
// blocks, one vector each. Example, Q4_0 with 16 lanes: 2 x 32 bytes of scales, then 4 + 4 vectors of 64 bytes; byte j
// of a row's nibbles is in byte j % 4 of its lane of vector j / 4. Two kinds of words are kept in a handier form
// (stored_word): signed bytes as quad_dot takes weights, and fifth bits with those of four neighbours in one bit of
// four bytes.
//
// A group of float rows has element i of all rows in one vector.
#pragma once

#include "devices/cpu/kernels/formats.h"
#include "devices/cpu/kernels/quad_dot.h"

namespace shoal::cpu::SHOAL_ISA {

/// Where a block has its numbers (scale and minimum, or as many as are left beside whole words) and its words, in
/// bytes, and how many of each: the numbers stand at its beginning or end.
template <class Block>
struct BlockParts {
  using Number = decltype(Block::scale);
  static constexpr int kNumberBytes = sizeof(Number), kNumbersAt = offsetof(Block, scale);
  static constexpr int kNumbers = static_cast<int>(sizeof(Block)) % 4 == 0 ? 4 / kNumberBytes : 1;
  static constexpr int kWordsAt = kNumbersAt == 0 ? kNumberBytes * kNumbers : 0;
  static constexpr int kWords = (static_cast<int>(sizeof(Block)) - kNumberBytes * kNumbers) / 4;
};

/// Four scales of a byte each.
template <>
struct BlockParts<quants::BlockNVFP4> {
  using Number = uint8_t;
  static constexpr int kNumberBytes = 1, kNumbersAt = 0, kNumbers = 4, kWordsAt = 4, kWords = 8;
};

template <class Format>
struct PackedLayout : BlockParts<typename Format::Block> {
  using Parts = BlockParts<typename Format::Block>;
  using Block = typename Format::Block;
  static constexpr int kBlocks = Format::kParts == 1 ? 4 / Parts::kNumberBytes : 1;  ///< per unit
  static constexpr int kParts = kBlocks * Format::kParts;                            ///< of 32 elements, per unit
  static constexpr size_t kVectorBytes = kLanes * Parts::kNumberBytes;               ///< of a number of all rows
  static constexpr size_t kWordsFrom =
      (kBlocks * Parts::kNumbers * kVectorBytes + sizeof(Bytes) - 1) / sizeof(Bytes) * sizeof(Bytes);
  static constexpr size_t kBytes = kWordsFrom + kBlocks * Parts::kWords * sizeof(Bytes);
  static_assert(sizeof(Block) == Parts::kNumberBytes * Parts::kNumbers + 4 * Parts::kWords);

  static constexpr size_t number_at(int block, int i) { return (block * Parts::kNumbers + i) * kVectorBytes; }
  static constexpr size_t word_at(int block, int i) { return kWordsFrom + (block * Parts::kWords + i) * sizeof(Bytes); }
  static int64_t units(int64_t k) { return (k / 32 + kParts - 1) / kParts; }
};

/// What a quantised format has in fifth-bit words: the first word of a block, or none.
template <class Format>
inline constexpr bool kHasFifthBits = Format::kParts == 1 && Format::Block::kBits == 5;

/// 4x8 bits <-> 8x4 bits: bit 4 q + b of every lane to bit 8 b + q, and back.
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

/// Word i of a block of every row, as a group keeps it.
template <class Format>
inline I32 stored_word(I32 word, int i) {
  if constexpr (Format::kParts == 1 && Format::Block::kBits == 8) {
    if constexpr (kWeightBias != 0) return word ^ static_cast<int32_t>(0x80808080u);
  }
  if constexpr (kHasFifthBits<Format>) return i == 0 ? fifth_bits_to_bytes(word) : word;
  return word;
}
/// The word of one row again.
template <class Format>
inline uint32_t restored_word(uint32_t word, int i) {
  if constexpr (Format::kParts == 1 && Format::Block::kBits == 8) {
    if constexpr (kWeightBias != 0) return word ^ 0x80808080u;
  }
  if constexpr (kHasFifthBits<Format>) return i == 0 ? fifth_bits_of_bytes(word) : word;
  return word;
}

}  // namespace shoal::cpu::SHOAL_ISA
