// The searches behind the quantisers: the scale of a few elements that gives the smallest squared
// error. Exhaustive over a few dozen candidates around the obvious one, then least squares for the chosen integers.
#pragma once

#include <cmath>
#include <cstdint>

namespace shoal::quants {

/// round(x) limited to [low, high]; NaN gives low.
inline int round_to(float x, int low, int high) {
  if (!(x > static_cast<float>(low))) return low;
  if (x >= static_cast<float>(high)) return high;
  return static_cast<int>(std::lrintf(x));
}

/// 1 / x, 0 for 0.
inline float inverse(float x) {
  return x == 0.0f ? 0.0f : 1.0f / x;
}

/// x ~ scale * q with q in [low, high] (low < 0 < high, low == -high - 1): the best scale, of either sign.
///   {-8, 4, 2} with [-8, 7] -> 1
float fit_symmetric(const float* x, int n, int low, int high);

}  // namespace shoal::quants
