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

/// Exchanges v[i][j] and v[j][i]. Each round is a perfect shuffle of all lanes. The top bit of the row number becomes
/// the lowest bit of the lane number. After log2(kLanes) rounds, the row number and the lane number are exchanged.
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
