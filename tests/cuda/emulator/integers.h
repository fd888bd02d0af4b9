// Integer intrinsics of CUDA.
#pragma once

#include <vector_types.h>

#include <bit>
#include <cstdint>

inline int __clz(uint32_t x) {
  return std::countl_zero(x);
}
inline int __ffs(uint32_t x) {
  return x == 0 ? 0 : std::countr_zero(x) + 1;
}
inline int __popc(uint32_t x) {
  return std::popcount(x);
}

inline uint32_t __float_as_uint(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline float __uint_as_float(uint32_t x) {
  return std::bit_cast<float>(x);
}

/// Returns the lower word of hi:lo >> shift.
inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{hi} << 32 | lo) >> (shift & 31));
}

/// Each nibble of `selector` is the number of a byte of `b`:`a`; byte 0 is the lowest byte of `a`. If bit 3 of the
/// nibble is set, the result byte repeats the sign bit of the chosen byte.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t choice = selector >> (4 * i) & 0xF;
    auto byte = static_cast<uint32_t>(bytes >> (8 * (choice & 7)) & 0xFF);
    if ((choice & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}

namespace shoal::cuda::emulator {

/// Returns byte i (8-bit T) or half word i (16-bit T) of x.
template <class T, class Word>
T part(Word x, int i) {
  return static_cast<T>(static_cast<uint32_t>(x) >> (8 * sizeof(T) * i));
}

}  // namespace shoal::cuda::emulator

inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c = static_cast<int>(static_cast<uint32_t>(c) + static_cast<uint32_t>(shoal::cuda::emulator::part<int8_t>(a, i) *
                                                                          shoal::cuda::emulator::part<int8_t>(b, i)));
  }
  return c;
}
inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < 4; ++i) {
    c += uint32_t{shoal::cuda::emulator::part<uint8_t>(a, i)} * shoal::cuda::emulator::part<uint8_t>(b, i);
  }
  return c;
}

// CUDA defines min and max for these types.
#define SHOAL_MIN_MAX(type)            \
  constexpr type min(type a, type b) { \
    return b < a ? b : a;              \
  }                                    \
  constexpr type max(type a, type b) { \
    return a < b ? b : a;              \
  }
SHOAL_MIN_MAX(int)
SHOAL_MIN_MAX(unsigned)
SHOAL_MIN_MAX(long)
SHOAL_MIN_MAX(unsigned long)
#undef SHOAL_MIN_MAX
