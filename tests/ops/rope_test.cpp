// Compares rope with values computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"

namespace shoal::test {
namespace {

constexpr Tolerance kClose{1e-13};

Values run_rope(const Values& x, const RopeParams& params, double position, const Values& factors = {}) {
  Eval eval;
  Tensor* row = eval.input({static_cast<int64_t>(x.size()), 1, 1, 1}, x);
  const auto pairs = static_cast<int64_t>(factors.size());
  Tensor* divisors = factors.empty() ? nullptr : eval.input({pairs, 1, 1, 1}, factors);
  return eval.run(rope(eval.graph, row, eval.integers({position}), divisors, params));
}

TEST(Rope, PairsAreAdjacentInModeNeighbours) {
  // With dims 4 and base 100, the angles at position p are p and p / 10.
  const RopeParams params{.dims = 4, .base = 100};
  const Values expected{std::cos(2.0), std::sin(2.0), -3 * std::sin(0.2), 3 * std::cos(0.2)};
  EXPECT_TRUE(close_to(run_rope({1, 0, 0, 3}, params, 2), expected, kClose));
}

TEST(Rope, PairsAreHalfARowApartInModeHalves) {
  const RopeParams params{.dims = 4, .mode = RopeMode::kHalves, .base = 100};
  const Values expected{std::cos(2.0), -3 * std::sin(0.2), std::sin(2.0), 3 * std::cos(0.2)};
  EXPECT_TRUE(close_to(run_rope({1, 0, 0, 3}, params, 2), expected, kClose));
}

TEST(Rope, ElementsAfterTheRotatedDimensionsAreUnchanged) {
  const RopeParams params{.dims = 2};
  const Values result = run_rope({1, 0, 5, 6, 7}, params, 1);
  EXPECT_TRUE(close_to(result, {std::cos(1.0), std::sin(1.0), 5, 6, 7}, kClose));
}

TEST(Rope, ElementsBeforeTheOffsetAreUnchanged) {
  const RopeParams params{.dims = 4, .offset = 2, .base = 100};
  const Values expected{5, 6, std::cos(2.0), std::sin(2.0), -3 * std::sin(0.2), 3 * std::cos(0.2), 7};
  EXPECT_TRUE(close_to(run_rope({5, 6, 1, 0, 0, 3, 7}, params, 2), expected, kClose));
}

TEST(Rope, AnglesUseFrequencyFactorsAndFrequencyScale) {
  const RopeParams params{.dims = 4, .base = 100, .freq_scale = 0.5f, .attn_factor = 2};
  // The angles are 8 * 0.5 / 4 = 1 and 0.8 * 0.5 / 2 = 0.2.
  const Values expected{2 * std::cos(1.0), 2 * std::sin(1.0), 2 * std::cos(0.2), 2 * std::sin(0.2)};
  EXPECT_TRUE(close_to(run_rope({1, 0, 1, 0}, params, 8, {4, 2}), expected, kClose));
}

TEST(Rope, AnglesOfLargePositionsAreExact) {
  const RopeParams params{.dims = 2};
  EXPECT_TRUE(close_to(run_rope({1, 0}, params, 1000003), {std::cos(1000003.0), std::sin(1000003.0)}, kClose));
}

TEST(Rope, YarnKeepsFastPairsAndInterpolatesSlowPairs) {
  // With dims 8 and base 10000, pair i rotates by 10^-i radians per position. In a context of 2 pi * 320 positions,
  // pair_at(turns) is 8 ln(320 / turns) / (2 ln 10000): 1.001 for beta_fast = 31.9 and 2.505 for beta_slow = 1. So low
  // = 1 (floor) and high = 3 (ceil). The weights of the unscaled angle are 1, 1, 1/2 and 0 for the four pairs.
  const RopeParams params{
      .dims = 8, .freq_scale = 0.25f, .ext_factor = 1, .beta_fast = 31.9f, .beta_slow = 1, .original_context = 2011};
  const double share[] = {1, 1, 0.5, 0};
  const double magnitude = 1 + 0.1 * std::log(4.0);
  Values expected;
  for (int i = 0; i < 4; ++i) {
    const double angle = 100 * std::pow(10.0, -i) * (share[i] + 0.25 * (1 - share[i]));
    expected.insert(expected.end(), {magnitude * std::cos(angle), magnitude * std::sin(angle)});
  }
  EXPECT_TRUE(close_to(run_rope({1, 0, 1, 0, 1, 0, 1, 0}, params, 100), expected, kClose));
}

TEST(Rope, YarnInterpolationMayStartAndEndBetweenPairs) {
  // Only `truncate` differs from the previous test. The interpolation range is now from pair 1.001 to pair 2.505. So
  // pair 2 is at (2 - 1.001) / 1.504 of the range.
  const RopeParams params{.dims = 8,
                          .freq_scale = 0.25f,
                          .ext_factor = 1,
                          .beta_fast = 31.9f,
                          .beta_slow = 1,
                          .original_context = 2011,
                          .truncate = false};
  const auto pair_at = [](double turns) { return std::log10(2011 / (2 * std::numbers::pi * turns)); };
  const double share = 1 - (2 - pair_at(31.9)) / (pair_at(1) - pair_at(31.9));
  const double magnitude = 1 + 0.1 * std::log(4.0), angle = 100 * 0.01 * (share + 0.25 * (1 - share));
  const Values result = run_rope({1, 0, 1, 0, 1, 0, 1, 0}, params, 100);
  EXPECT_NEAR(result[4], magnitude * std::cos(angle), 1e-6);
  EXPECT_NEAR(result[5], magnitude * std::sin(angle), 1e-6);
}

TEST(Rope, AllHeadsOfAPositionRotateEqually) {
  Eval eval;
  Tensor* x = eval.input({2, 3, 2, 1}, {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0});
  const Values result = eval.run(rope(eval.graph, x, eval.integers({1, 5}), nullptr, {.dims = 2}));
  Values expected;
  for (const double position : {1.0, 1.0, 1.0, 5.0, 5.0, 5.0}) {
    expected.insert(expected.end(), {std::cos(position), std::sin(position)});
  }
  EXPECT_TRUE(close_to(result, expected, kClose));
}

}  // namespace
}  // namespace shoal::test
