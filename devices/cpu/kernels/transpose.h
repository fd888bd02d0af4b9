// Transposes kLanes vectors of kLanes 32-bit lanes.
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

inline I32 interleave_low(I32 a, I32 b) {
  return shuffle(a, b, [](int i) { return i / 2 + i % 2 * kLanes; });
}
inline I32 interleave_high(I32 a, I32 b) {
  return shuffle(a, b, [](int i) { return kLanes / 2 + i / 2 + i % 2 * kLanes; });
}

/// Exchanges v[i][j] and v[j][i].
#if defined(__AVX2__) && !defined(__AVX512F__)
/// The first two rounds work separately on the two halves of a register. The last round exchanges halves.
inline void transpose(I32 (&v)[8]) {
  __m256i pairs[8], quads[8];
  SHOAL_UNROLL
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32((__m256i)v[i], (__m256i)v[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32((__m256i)v[i], (__m256i)v[i + 1]);
  }
  SHOAL_UNROLL
  for (int i = 0; i < 8; i += 4) {
    SHOAL_UNROLL
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  }
  SHOAL_UNROLL
  for (int i = 0; i < 4; ++i) {
    v[i] = (I32)_mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    v[i + 4] = (I32)_mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}
#else
/// Each round is a perfect shuffle of all lanes. The top bit of the row number becomes the lowest bit of the lane
/// number. After log2(kLanes) rounds, the row number and the lane number are exchanged.
inline void transpose(I32 (&v)[kLanes]) {
  SHOAL_UNROLL
  for (int round = 1; round < kLanes; round *= 2) {
    I32 next[kLanes];
    SHOAL_UNROLL
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave_low(v[i], v[i + kLanes / 2]);
      next[2 * i + 1] = interleave_high(v[i], v[i + kLanes / 2]);
    }
    SHOAL_UNROLL
    for (int i = 0; i < kLanes; ++i) v[i] = next[i];
  }
}
#endif

}  // namespace shoal::cpu::SHOAL_ISA
