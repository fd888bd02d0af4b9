#include "graph/quants/fit.h"

#include <algorithm>

namespace shoal::quants {
namespace {

constexpr int kSteps = 9;            // candidates on each side of the obvious one
constexpr float kStepLevels = 0.1f;  // distance of two candidates, in quantisation levels of the extreme element

/// Sums of the least squares problem x ~ scale * q.
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

/// Squared error and the best scale and minimum when the integers are those of (inverse_scale, min).
struct Trial {
  Affine fit;
  float error;
};

Trial try_affine(const float* x, int n, int high, float inverse_scale, float min) {
  float sx = 0, sq = 0, sqq = 0, sxq = 0, sxx = 0;
  for (int i = 0; i < n; ++i) {
    const float q = static_cast<float>(round_to((x[i] + min) * inverse_scale, 0, high));
    sx += x[i], sq += q, sqq += q * q, sxq += x[i] * q, sxx += x[i] * x[i];
  }
  const float count = static_cast<float>(n);
  const float determinant = count * sqq - sq * sq;
  Affine fit{0, std::max(0.0f, -sx / count)};
  if (determinant > 0) {
    fit.scale = (count * sxq - sx * sq) / determinant;
    fit.min = (fit.scale * sq - sx) / count;
  }
  // A minimum that would have to be positive is left out; so it is when all integers are equal.
  if (sqq > 0 && sxq > 0 && (fit.min < 0 || determinant <= 0)) fit = {sxq / sqq, 0};
  const float error = sxx + fit.scale * fit.scale * sqq + count * fit.min * fit.min -
                      2 * (fit.scale * sxq - fit.min * sx + fit.scale * fit.min * sq);
  return {fit, error};
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

Affine fit_affine(const float* x, int n, int high) {
  const auto [lowest, highest] = std::minmax_element(x, x + n);
  const float min = std::max(0.0f, -*lowest);
  const float span = *highest + min;
  if (!(span > 0)) return {0, min};
  Trial best{{span / static_cast<float>(high), min}, INFINITY};
  for (int step = -kSteps; step <= kSteps; ++step) {
    const float levels = static_cast<float>(high) + kStepLevels * static_cast<float>(step);
    const Trial first = try_affine(x, n, high, levels / span, min);
    const Trial second = try_affine(x, n, high, inverse(first.fit.scale), first.fit.min);
    const Trial& better = second.error < first.error ? second : first;
    if (better.fit.scale >= 0 && better.error < best.error) best = better;
  }
  return best.fit;
}

}  // namespace shoal::quants
