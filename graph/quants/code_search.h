// What the encoders of the coded types search with: a scale for some elements, and the nearest entry of a codebook.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "graph/quants/grids.h"

namespace shoal::quants {

/// The number of the nearest of ascending levels; NaN gives 0.
template <size_t kCount>
int nearest_level(const std::array<float, kCount>& levels, float x) {
  int number = 0;
  for (size_t i = 0; i + 1 < kCount; ++i) number += x > (levels[i] + levels[i + 1]) * 0.5f ? 1 : 0;
  return number;
}

/// x ~ scale * level: the scale with the smallest squared error, of those that are tried: the extreme element at each
/// level, or a little off it, each time the best one for the levels that it gives; and the same from the best of all
/// on. Negative only where the levels are not as many below zero as above.
///   {1, 0, -2} with {-1, 0, 1} -> 1.5 or 2, whichever is nearer to all
template <size_t kCount>
float fit_levels(const float* x, int n, const std::array<float, kCount>& levels) {
  float extreme = 0;
  for (int i = 0; i < n; ++i) extreme = std::fabs(x[i]) > extreme ? std::fabs(x[i]) : extreme;
  if (!(extreme > 0)) return 0;
  const bool symmetric = levels.front() >= 0 || levels.front() == -levels.back();
  float best_scale = 0, best_gain = 0;
  const auto consider = [&](float inverse_scale) {
    float xq = 0, qq = 0;
    for (int i = 0; i < n; ++i) {
      const float level = levels[static_cast<size_t>(nearest_level(levels, x[i] * inverse_scale))];
      xq += x[i] * level;
      qq += level * level;
    }
    // The squared error with the best scale is |x|^2 - xq^2 / qq.
    if (!(qq > 0) || (symmetric && !(xq > 0)) || !(xq * xq > best_gain * qq)) return;
    best_gain = xq * xq / qq;
    best_scale = xq / qq;
  };
  for (const float level : levels) {
    if (level == 0 || (symmetric && level < 0)) continue;
    for (int step = -2; step <= 2; ++step) {
      const float candidate = level * (1 + 0.07f * static_cast<float>(step)) / extreme;
      consider(candidate);
      if (!symmetric) consider(-candidate);
    }
  }
  for (int round = 0; round < 4 && best_scale != 0; ++round) consider(1 / best_scale);
  return best_scale;
}

struct Nearest {
  int number = 0;
  float error = 0;  ///< squared
};

/// The entries of a grid as floats.
class Entries {
 public:
  template <class Grid>
  explicit Entries(const Grid& grid) : elements_(Grid::kElements) {
    for (const auto entry : grid.entries) {
      float norm = 0;
      for (int j = 0; j < elements_; ++j) {
        const auto element = static_cast<float>(entry >> (8 * j) & 255);
        values_.push_back(element);
        norm += element * element;
      }
      norms_.push_back(norm);
    }
  }

  /// Of the elements from x on; the first of those that are equally near.
  Nearest nearest(const float* x) const {
    Nearest best{0, INFINITY};
    float of_x = 0;
    for (int j = 0; j < elements_; ++j) of_x += x[j] * x[j];
    for (size_t i = 0; i < norms_.size(); ++i) {
      const float* entry = values_.data() + i * static_cast<size_t>(elements_);
      float product = 0;
      for (int j = 0; j < elements_; ++j) product += x[j] * entry[j];
      const float error = norms_[i] - 2 * product + of_x;
      if (error < best.error) best = {static_cast<int>(i), error};
    }
    return best;
  }

 private:
  int elements_;
  std::vector<float> values_, norms_;
};

template <class Grid>
const Entries& entries_of(const Grid& grid) {
  static const Entries entries(grid);  // one grid of each type
  return entries;
}

/// What codes may be.
struct IQ2Levels {
  static constexpr bool kMagnitudes = true;
  static constexpr std::array<float, 3> kLevels{8, 25, 43};
};
struct IQ3XXSLevels {
  static constexpr bool kMagnitudes = true;
  static constexpr std::array<float, 8> kLevels{4, 12, 20, 28, 36, 44, 52, 62};
};
struct IQ3SLevels {
  static constexpr bool kMagnitudes = true;
  static constexpr std::array<float, 8> kLevels{1, 3, 5, 7, 9, 11, 13, 15};
};
struct IQ1Levels {
  static constexpr bool kMagnitudes = false;
  static constexpr std::array<float, 6> kLevels{-9, -7, -1, 1, 7, 9};
};

}  // namespace shoal::quants
