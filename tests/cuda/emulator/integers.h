// Integer instructions that CUDA has names for.
#pragma once

#include <vector_types.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>

inline int __popc(uint32_t x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __clz(uint32_t x) {
  return std::countl_zero(x);
}
inline int __clzll(unsigned long long x) {
  return std::countl_zero(x);
}
inline int __ffs(uint32_t x) {
  return x == 0 ? 0 : std::countr_zero(x) + 1;
}
inline int __ffsll(unsigned long long x) {
  return x == 0 ? 0 : std::countr_zero(x) + 1;
}
inline uint32_t __brev(uint32_t x) {
  uint32_t result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}

/// The upper word of hi:lo shifted left; shift counts modulo 32 (`c`: at most 32).
inline uint32_t __funnelshift_l(uint32_t lo, uint32_t hi, uint32_t shift) {
  return static_cast<uint32_t>(((uint64_t{hi} << 32 | lo) << (shift & 31)) >> 32);
}
inline uint32_t __funnelshift_lc(uint32_t lo, uint32_t hi, uint32_t shift) {
  return shift >= 32 ? lo : __funnelshift_l(lo, hi, shift);
}
/// The lower word of hi:lo shifted right.
inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{hi} << 32 | lo) >> (shift & 31));
}
inline uint32_t __funnelshift_rc(uint32_t lo, uint32_t hi, uint32_t shift) {
  return shift >= 32 ? hi : __funnelshift_r(lo, hi, shift);
}

/// Bytes of b:a (numbers 7 to 0) chosen by the nibbles of `selector`; bit 3 of a nibble repeats the byte's sign.
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

/// Byte or half word i of x.
template <class T, class Word>
T part(Word x, int i) {
  return static_cast<T>(static_cast<uint32_t>(x) >> (8 * sizeof(T) * i));
}

/// function(a's byte, b's byte) of each byte.
template <class T, class Function>
uint32_t for_parts(uint32_t a, uint32_t b, Function function) {
  using Bits = std::make_unsigned_t<T>;
  uint32_t result = 0;
  for (int i = 0; i < static_cast<int>(4 / sizeof(T)); ++i) {
    const auto bits = static_cast<Bits>(function(part<T>(a, i), part<T>(b, i)));
    result |= static_cast<uint32_t>(bits) << (8 * sizeof(T) * i);
  }
  return result;
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

inline uint32_t __vadd4(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<uint8_t>(a, b, [](int x, int y) { return x + y; });
}
inline uint32_t __vsub4(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<uint8_t>(a, b, [](int x, int y) { return x - y; });
}
inline uint32_t __vaddss4(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<int8_t>(a, b, [](int x, int y) { return std::clamp(x + y, -128, 127); });
}
inline uint32_t __vsubss4(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<int8_t>(a, b, [](int x, int y) { return std::clamp(x - y, -128, 127); });
}
inline uint32_t __vneg4(uint32_t a) {
  return __vsub4(0, a);
}
inline uint32_t __vabs4(uint32_t a) {
  return shoal::cuda::emulator::for_parts<int8_t>(a, a, [](int x, int) { return std::abs(x); });
}
inline uint32_t __vcmpeq4(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<uint8_t>(a, b, [](int x, int y) { return x == y ? 0xFF : 0; });
}
inline uint32_t __vcmpne4(uint32_t a, uint32_t b) {
  return ~__vcmpeq4(a, b);
}
inline uint32_t __vmaxs4(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<int8_t>(a, b, [](int x, int y) { return std::max(x, y); });
}
inline uint32_t __vmins4(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<int8_t>(a, b, [](int x, int y) { return std::min(x, y); });
}
inline uint32_t __vsub2(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<uint16_t>(a, b, [](int x, int y) { return x - y; });
}
inline uint32_t __vadd2(uint32_t a, uint32_t b) {
  return shoal::cuda::emulator::for_parts<uint16_t>(a, b, [](int x, int y) { return x + y; });
}

inline int __mulhi(int a, int b) {
  return static_cast<int>((int64_t{a} * b) >> 32);
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((Wide{a} * b) >> 64);
}
inline int __mul24(int a, int b) {
  return ((a << 8) >> 8) * ((b << 8) >> 8);
}

// CUDA's min and max, by the types that it has them for.
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
SHOAL_MIN_MAX(long long)
SHOAL_MIN_MAX(unsigned long long)
#undef SHOAL_MIN_MAX
constexpr unsigned min(int a, unsigned b) {
  return min(static_cast<unsigned>(a), b);
}
constexpr unsigned min(unsigned a, int b) {
  return min(a, static_cast<unsigned>(b));
}
constexpr unsigned max(int a, unsigned b) {
  return max(static_cast<unsigned>(a), b);
}
constexpr unsigned max(unsigned a, int b) {
  return max(a, static_cast<unsigned>(b));
}
