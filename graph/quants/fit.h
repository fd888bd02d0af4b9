// The quantisers' search for a scale: finds the scale with the smallest squared error for a few elements. The first
// scale of a search maps the extreme element to the lowest level. The search tries scales near the first scale. For
// each of these scales, the search rounds the elements to integers and solves least squares for the best scale with
// these integers.
#pragma once

#include <cmath>
#include <cstdint>

namespace shoal::quants {

/// round(x) clamped to [low, high]; NaN gives low.
inline int round_to(float x, int low, int high) {
  if (!(x > static_cast<float>(low))) return low;
  if (x >= static_cast<float>(high)) return high;
  return static_cast<int>(std::lrintf(x));
}

/// 1 / x, or 0 if x is 0.
inline float inverse(float x) {
  return x == 0.0f ? 0.0f : 1.0f / x;
}

/// The best scale, of either sign, for x ~ scale * q with q in [low, high] (low < 0 < high, low == -high - 1).
///   {-8, 4, 2} with [-8, 7] -> 1
float fit_symmetric(const float* x, int n, int low, int high);

}  // namespace shoal::quants
