// Transposes kLanes vectors of kLanes 32-bit lanes.
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

#if defined(__AVX512F__)
inline I32 interleave_low(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline I32 interleave_high(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(__AVX2__)
inline I32 interleave_low(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
inline I32 interleave_high(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
#else
inline I32 interleave_low(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
}
inline I32 interleave_high(I32 a, I32 b) {
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
}
#endif

/// v[i][j] <-> v[j][i]. Each round is a perfect shuffle of all lanes, which moves the top bit of the row number to
/// the bottom of the lane number; log2(kLanes) rounds exchange the two.
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

}  // namespace shoal::cpu::SHOAL_ISA
