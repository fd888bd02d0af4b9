// Functions that read parts of quantised blocks as vectors of bytes and floats.
#pragma once

#include "devices/cpu/kernels/half.h"
#include "graph/quants/blocks.h"

namespace shoal::cpu::SHOAL_ISA {

/// Value of kOffset for formats whose raw bytes are signed.
inline constexpr int kSigned = -1;

/// The scales of one block, or of eight blocks of 32 elements. BlockScalesAndAdds also has addends.
template <int kCount>
struct BlockScales {
  float scale[kCount];
};
template <int kCount>
struct BlockScalesAndAdds {
  float scale[kCount];
  float add[kCount];
};

/// Returns the bytes of a, followed by the bytes of b.
inline U8x32 join(U8x16 a, U8x16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                 23, 24, 25, 26, 27, 28, 29, 30, 31);
}

/// Byte i of the result is (bytes[i] >> shift) & mask. A negative shift shifts left. The mask must remove the bits that
/// come from neighbouring bytes.
inline I8x32 bit_field(U8x32 bytes, int shift, int mask) {
  const auto words = bits_as<Vec<uint16_t, 16>>(bytes);
  return bits_as<I8x32>(shift < 0 ? words << -shift : words >> shift) & static_cast<int8_t>(mask);
}
inline I8x32 bit_field(const uint8_t* from, int shift, int mask) {
  return bit_field(load<U8x32>(from), shift, mask);
}

/// Decodes 16 bytes, which contain 32 nibbles. The low nibbles are elements 0..15, and the high nibbles are elements
/// 16..31.
inline I8x32 nibbles(const uint8_t* from) {
  const U8x16 bytes = load<U8x16>(from);
  return bits_as<I8x32>(join(bytes & 15, bytes >> 4));
}
/// Moves bit i of `bits` to bit 4 of byte i.
inline I8x32 fifth_bits(uint32_t bits) {
  const Vec<uint32_t, 8> copies = bits - Vec<uint32_t, 8>{};
  const U8x32 bytes = bits_as<U8x32>(copies);
  const U8x32 own = __builtin_shufflevector(bytes, bytes, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 18, 18, 18,
                                            18, 18, 18, 18, 18, 19, 19, 19, 19, 19, 19, 19, 19);
  const Vec<uint64_t, 4> every = 0x8040201008040201u - Vec<uint64_t, 4>{};
  const U8x32 bit = bits_as<U8x32>(every);
  return bits_as<I8x32>((own & bit) == bit) & 16;
}
/// Converts the scale of a block to a float. A 16-bit scale is an f16. A one-byte scale stores `power`, and the scale
/// is 2^(power - 128).
inline float scale_to_float(uint16_t half) {
  return half_to_float(half);
}
inline float scale_to_float(uint8_t power) {
  return powers_to_float(I32{} + power)[0];
}
inline F32x8 scales_to_float(Vec<uint16_t, 8> halves) {
  return halves_to_float(halves);
}
inline F32x8 scales_to_float(Vec<uint8_t, 8> powers) {
  uint8_t from[8];
  store(from, powers);
  return powers_to_float(load_eight(from));
}

/// Converts eight signed or unsigned bytes to floats.
template <class Byte>
inline F32x8 bytes_to_float(const Byte* from) {
  return __builtin_convertvector(load_eight(from), F32x8);
}

}  // namespace shoal::cpu::SHOAL_ISA
