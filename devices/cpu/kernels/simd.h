// Vectors of one instruction-set level. They use the vector extensions that both GCC and Clang have, so each kernel is
// written once. F32 and I32 have kLanes lanes. A Bytes vector fills a register. Each level has its own namespace, so
// the linker cannot merge functions of different levels. Only files of this folder include this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(__AVX2__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns about undefined operands inside its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

// Loops are not unrolled under sanitizers, because unrolled loops with sanitizer checks take minutes to compile.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHOAL_UNROLL
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHOAL_UNROLL
#elif defined(__clang__) && !defined(SHOAL_UNROLL)
#define SHOAL_UNROLL _Pragma("unroll")
#elif !defined(SHOAL_UNROLL)
#define SHOAL_UNROLL _Pragma("GCC unroll 16")
#endif

// Prevents unrolling of a loop whose body fills the registers. If the compiler unrolled the loop, or fused it with an
// inner loop, registers would be spilled.
#if defined(__clang__)
#define SHOAL_NO_UNROLL _Pragma("nounroll")
#else
#define SHOAL_NO_UNROLL _Pragma("GCC unroll 1")
#endif

namespace shoal::cpu::SHOAL_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

template <class T, int kCount>
struct VectorOf {
  typedef T type __attribute__((vector_size(kCount * sizeof(T))));
};
template <class T, int kCount>
using Vec = typename VectorOf<T, kCount>::type;

using F32 = Vec<float, kLanes>;
using I32 = Vec<int32_t, kLanes>;
using U32 = Vec<uint32_t, kLanes>;  // sums and differences wrap around
using Bytes = Vec<int8_t, 4 * kLanes>;
// Quantised rows are processed in groups of 32 elements. 32 bytes fill two registers on the baseline level.
using F32x8 = Vec<float, 8>;
using I32x8 = Vec<int32_t, 8>;
using I8x16 = Vec<int8_t, 16>;
using I8x32 = Vec<int8_t, 32>;
using U8x16 = Vec<uint8_t, 16>;
using U8x32 = Vec<uint8_t, 32>;

template <class V>
inline V load(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
inline void store(void* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

template <class V>
inline V splat_float(float x) {
  return x - V{};  // x - 0 is x for every x, so compilers remove the subtraction
}
inline F32 splat(float x) {
  return splat_float<F32>(x);
}
inline I32 splat(int32_t x) {
  return x - I32{};
}

/// Computes a * b + c. The operation is fused on levels with FMA. The compiler itself does not fuse multiplications and
/// additions, so all calls on one level use the same operations.
#if defined(__FMA__)
inline Vec<float, 8> multiply_add(Vec<float, 8> a, Vec<float, 8> b, Vec<float, 8> c) {
  return (Vec<float, 8>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
inline Vec<float, 4> multiply_add(Vec<float, 4> a, Vec<float, 4> b, Vec<float, 4> c) {
  return (Vec<float, 4>)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
}
inline float multiply_add(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
#else
template <class V>
inline V multiply_add(V a, V b, V c) {
  return a * b + c;
}
#endif
#if defined(__AVX512F__)
inline F32 multiply_add(F32 a, F32 b, F32 c) {
  return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#endif

inline F32 to_float(I32 v) {
  return __builtin_convertvector(v, F32);
}

/// Forces the compiler to compute `v` at this point. Otherwise compilers may reorder the sums of long unrolled loops,
/// so that the addends do not fit into the registers.
template <class V>
inline void compute_now(V& v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  if constexpr (sizeof(V) <= sizeof(F32)) asm("" : "+x"(v));
#endif
}

/// Forces the compiler to keep `object` in memory and to read `object` from memory.
template <class T>
inline void in_memory(const T& object) {
  asm volatile("" : : "r"(&object) : "memory");
}

/// Returns the bits of a vector as another type of the same size.
template <class To, class From>
inline To bits_as(From v) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)v;
}

/// Lane i of the result is lane at(i) of the concatenation of a and b. `at` must not have captures.
template <class At, class V, size_t... i>
inline V shuffle(V a, V b, At, std::index_sequence<i...>) {
  return __builtin_shufflevector(a, b, At{}(static_cast<int>(i))...);
}
template <class At, class V>
inline V shuffle(V a, V b, At at) {
  return shuffle(a, b, at, std::make_index_sequence<sizeof(V) / sizeof(a[0])>{});
}

/// Returns the bits of the magnitudes. Compared as integers, these bits have the same order as the magnitudes. The bits
/// of infinity are larger than the bits of all finite numbers, and the bits of NaN are larger than the bits of
/// infinity.
inline I32 magnitude_bits(F32 x) {
  return bits_as<I32>(x) & 0x7fffffff;
}
/// For each lane, returns the bits of the largest magnitude in kCount vectors.
template <int kCount>
inline I32 largest_magnitude_bits(const F32 (&x)[kCount]) {
  I32 most = magnitude_bits(x[0]);
  SHOAL_UNROLL
  for (int i = 1; i < kCount; ++i) {
    const I32 other = magnitude_bits(x[i]);
    most = other > most ? other : most;
  }
  return most;
}

/// x + kRound - kRound is x rounded to the nearest integer, ties to even. The low bits of x + kRound are this integer.
inline constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

inline I32 rounded(F32 x) {
  return bits_as<I32>(x + splat(kRound)) - bits_as<I32>(splat(kRound));
}

/// Repeatedly adds the upper half of the lanes to the lower half, until one lane is left. For 8 lanes, the order is
/// ((0+4)+(2+6)) + ((1+5)+(3+7)).
inline float sum_lanes(Vec<float, 4> v) {
  const Vec<float, 4> pairs = v + __builtin_shufflevector(v, v, 2, 3, 0, 1);
  return pairs[0] + pairs[1];
}
inline float sum_lanes(Vec<float, 8> v) {
  return sum_lanes(__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
inline float sum_lanes(Vec<float, 16> v) {
  return sum_lanes(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}

/// Returns the largest lane. The lanes are integers, or floats without NaN.
template <class V>
inline auto max_lanes(V v) {
  if constexpr (sizeof(V) == 64) {
    const auto low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
    const auto high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    return max_lanes(high > low ? high : low);
  } else if constexpr (sizeof(V) == 32) {
    const auto low = __builtin_shufflevector(v, v, 0, 1, 2, 3), high = __builtin_shufflevector(v, v, 4, 5, 6, 7);
    return max_lanes(high > low ? high : low);
  } else {
    const V other = __builtin_shufflevector(v, v, 2, 3, 0, 1), most = other > v ? other : v;
    return most[0] > most[1] ? most[0] : most[1];
  }
}

/// Whether a comparison result is true in any lane.
inline bool any_lane(I32 mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8((__m128i)mask) != 0;
#else
  return max_lanes(-mask) != 0;
#endif
}

/// Stores the first n lanes.
inline void store_first(float* to, F32 v, int64_t n) {
  float values[kLanes];
  store(values, v);
  for (int64_t i = 0; i < n; ++i) to[i] = values[i];
}

// Widens small integers to 32-bit lanes. The functions use intrinsics, because GCC 12 converts byte vectors lane by
// lane.
#if defined(__AVX512F__)
inline I32 load_widened(const int8_t* from) {
  return (I32)_mm512_cvtepi8_epi32((__m128i)load<I8x16>(from));
}
inline I32 load_widened(const uint8_t* from) {
  return (I32)_mm512_cvtepu8_epi32((__m128i)load<I8x16>(from));
}
inline I32 load_widened(const uint16_t* from) {
  return (I32)_mm512_cvtepu16_epi32((__m256i)load<Vec<uint16_t, 16>>(from));
}
#elif defined(__AVX2__)
inline I32 load_widened(const int8_t* from) {
  return (I32)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load<int64_t>(from)));
}
inline I32 load_widened(const uint8_t* from) {
  return (I32)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load<int64_t>(from)));
}
inline I32 load_widened(const uint16_t* from) {
  return (I32)_mm256_cvtepu16_epi32((__m128i)load<Vec<uint16_t, 8>>(from));
}
#else
template <class T>
inline I32 load_widened(const T* from) {
  return I32{from[0], from[1], from[2], from[3]};
}
#endif
#if defined(__AVX2__)
inline I32x8 load_eight(const int8_t* from) {
  return (I32x8)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load<int64_t>(from)));
}
inline I32x8 load_eight(const uint8_t* from) {
  return (I32x8)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load<int64_t>(from)));
}
#else
template <class T>
inline I32x8 load_eight(const T* from) {
  return I32x8{from[0], from[1], from[2], from[3], from[4], from[5], from[6], from[7]};
}
#endif

}  // namespace shoal::cpu::SHOAL_ISA
