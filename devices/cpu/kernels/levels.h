// Decodes 4-bit codes. A code selects one of the levels of its format (kLevels in graph/quants/blocks.h).
#pragma once

#include "devices/cpu/kernels/format_bits.h"

namespace shoal::cpu::SHOAL_ISA {

/// Defines the bytes that kernels use for the codes of a format with levels. Usually, the byte of a code is the level
/// of the code as a signed byte. If all levels are within a range of less than 32, the byte is the distance of the
/// level from the lowest level, an unsigned 5-bit number. Example:
///   levels from -12 to 12 give kOffset 12 and bytes from 0 to 24
template <class B>
struct LevelBytes {
  static constexpr int extreme(int sign) {
    int most = sign * B::kLevels[0];
    for (const int level : B::kLevels) most = sign * level > most ? sign * level : most;
    return sign * most;
  }
  static constexpr bool kFew = extreme(1) - extreme(-1) < 32;
  static constexpr int kOffset = kFew ? -extreme(-1) : kSigned, kBits = kFew ? 5 : 8;
};
/// bytes[i] is the level of code i plus a bias.
struct LevelTable {
  int8_t bytes[16];
};
template <class B>
constexpr LevelTable level_table(int bias) {
  LevelTable table{};
  for (int i = 0; i < 16; ++i) table.bytes[i] = static_cast<int8_t>(B::kLevels[i] + bias);
  return table;
}

#if defined(__AVX2__)
/// Replaces each code by its byte in the table. Codes are below 16.
template <class B, int kBias, int kCount>
inline void look_up(Bytes (&codes)[kCount]) {
  static constexpr LevelTable kTable = level_table<B>(kBias);
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kTable.bytes));
  SHOAL_UNROLL
  for (Bytes& one : codes) {
#if defined(__AVX512BW__)
    one = (Bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)one);
#else
    one = (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)one);
#endif
  }
}
template <class B, int kBias>
inline I8x32 look_up(I8x32 codes) {
  static constexpr LevelTable kTable = level_table<B>(kBias);
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kTable.bytes));
  return (I8x32)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)codes);
}
#else
/// Has the same effect as look_up(), for instruction sets without a lookup instruction. This function starts from the
/// first byte of the table. For each i from 1 to the code, it adds the difference between bytes i and i - 1. The
/// function is not inlined, because inlined code for many vectors would exceed the instruction cache.
template <class B, int kBias>
__attribute__((noinline)) void add_up(I8x16* codes, int count) {
  constexpr LevelTable kTable = level_table<B>(kBias);
  SHOAL_NO_UNROLL
  for (int n = 0; n < count; ++n) {
    const I8x16 code = codes[n];
    U8x16 sum = U8x16{} + static_cast<uint8_t>(kTable.bytes[0]);
    SHOAL_UNROLL
    for (int i = 1; i < 16; ++i) {
      const auto is_above = bits_as<U8x16>(code > static_cast<int8_t>(i - 1));
      sum += is_above & static_cast<uint8_t>(kTable.bytes[i] - kTable.bytes[i - 1]);
    }
    codes[n] = bits_as<I8x16>(sum);
  }
}
template <class B, int kBias, int kCount>
inline void look_up(Bytes (&codes)[kCount]) {
  add_up<B, kBias>(codes, kCount);
}
template <class B, int kBias>
inline I8x32 look_up(I8x32 codes) {
  I8x16 parts[2];
  store(parts, codes);
  add_up<B, kBias>(parts, 2);
  return load<I8x32>(parts);
}
#endif

/// For each code, returns the byte that LevelBytes<B> defines.
template <class B>
inline I8x32 raw_levels(I8x32 codes) {
  constexpr int kBias = LevelBytes<B>::kFew ? LevelBytes<B>::kOffset : 0;
  return look_up<B, kBias>(codes);
}

}  // namespace shoal::cpu::SHOAL_ISA
