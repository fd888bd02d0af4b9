#include "graph/quants/fit.h"

#include <algorithm>

namespace shoal::quants {
namespace {

constexpr int kSteps = 9;            // number of scales tried on each side of the first scale
constexpr float kStepLevels = 0.1f;  // distance between two scales, in quantisation levels of the extreme element

/// Sums for the least-squares problem x ~ scale * q.
struct Products {
  float xq = 0, qq = 0;
};

Products products(const float* x, int n, float inverse_scale, int low, int high) {
  Products sums;
  for (int i = 0; i < n; ++i) {
    const float q = static_cast<float>(round_to(x[i] * inverse_scale, low, high));
    sums.xq += x[i] * q;
    sums.qq += q * q;
  }
  return sums;
}

}  // namespace

float fit_symmetric(const float* x, int n, int low, int high) {
  const float extreme = *std::max_element(x, x + n, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  if (extreme == 0) return 0;
  float best_scale = 0, best_gain = -1;
  for (int step = -kSteps; step <= kSteps; ++step) {
    const float inverse_scale = (static_cast<float>(low) + kStepLevels * static_cast<float>(step)) / extreme;
    const Products sums = products(x, n, inverse_scale, low, high);
    // The squared error with the best scale is |x|^2 - xq^2 / qq.
    if (sums.qq > 0 && sums.xq * sums.xq > best_gain * sums.qq) {
      best_gain = sums.xq * sums.xq / sums.qq;
      best_scale = sums.xq / sums.qq;
    }
  }
  return best_scale;
}

}  // namespace shoal::quants
