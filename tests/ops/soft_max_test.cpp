// Tests of edge cases of soft_max: masked rows, sinks, and large logits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"

namespace shoal::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Tolerance kClose{1e-12};

TEST(SoftMax, FullyMaskedRowsAreZero) {
  Eval eval;
  Tensor* x = eval.input({2, 3, 1, 1}, {1, 1, -kInfinity, -kInfinity, kNaN, 5});
  Tensor* mask = eval.input({2, 3, 1, 1}, {0, 0, 0, 0, -kInfinity, -kInfinity});
  const Values result = eval.run(soft_max(eval.graph, x, mask, nullptr, {}));
  EXPECT_TRUE(close_to(result, {0.5, 0.5, 0, 0, 0, 0}, kClose));
}

TEST(SoftMax, MaskedElementsMayBeNaN) {
  Eval eval;
  Tensor* x = eval.input({3, 1, 1, 1}, {1, kNaN, 1});
  Tensor* mask = eval.input(DType::kF16, {3, 1, 1, 1}, {0, -kInfinity, 0});
  EXPECT_TRUE(close_to(eval.run(soft_max(eval.graph, x, mask, nullptr, {})), {0.5, 0, 0.5}, kClose));
}

TEST(SoftMax, VisibleNaNAffectsOnlyItsRow) {
  for (const int64_t length : {1, 2, 16, 100, 3000}) {
    for (const double odd : {kNaN, -kNaN, kInfinity}) {
      Eval eval;
      // All elements of the first row are NaN or infinite. In the second row, all visible elements are NaN or infinite.
      // In the third row, one element is NaN or infinite. All elements of the fourth row are finite.
      Values logits(4 * length, 1), masks(4 * length, 0);
      for (int64_t i = 0; i < length; ++i) {
        logits[i] = logits[length + i] = odd;
        masks[length + i] = i % 2 == 1 ? -kInfinity : 0;
      }
      logits[3 * length - 1] = odd;
      Tensor* x = eval.input({length, 4, 1, 1}, logits);
      Tensor* mask = eval.input({length, 4, 1, 1}, masks);
      const Values result = eval.run(soft_max(eval.graph, x, mask, nullptr, {}));
      for (int64_t i = 0; i < 3 * length; ++i)
        ASSERT_TRUE(std::isnan(result[i])) << odd << ": " << i << " of " << length;
      const auto size = static_cast<double>(length);
      for (int64_t i = 3 * length; i < 4 * length; ++i) ASSERT_NEAR(result[i], 1 / size, 1e-6);
    }
  }
}

TEST(SoftMax, NaNRowsWithASinkStayNaN) {
  Eval eval;
  Tensor* x = eval.input({2, 2, 1, 1}, {kNaN, kNaN, -kInfinity, -kInfinity});
  Tensor* sinks = eval.input({1, 1, 1, 1}, {3});
  const Values result = eval.run(soft_max(eval.graph, x, nullptr, sinks, {}));
  for (const int i : {0, 1}) EXPECT_TRUE(std::isnan(result[i])) << result[i];
  for (const int i : {2, 3}) EXPECT_EQ(result[i], 0);
}

TEST(SoftMax, RowsWithANaNSinkAreNaN) {
  for (const double odd : {kNaN, -kNaN}) {
    Eval eval;
    // Each sink has three rows: a row of finite numbers, a row of -infinity, and a masked row.
    Tensor* x = eval.input({2, 3, 2, 1}, {1, 2, -kInfinity, -kInfinity, 1, 2, 1, 2, -kInfinity, -kInfinity, 1, 2});
    Tensor* mask = eval.input({2, 3, 1, 1}, {0, 0, 0, 0, -kInfinity, -kInfinity});
    Tensor* sinks = eval.input({2, 1, 1, 1}, {odd, 1});
    const Values result = eval.run(soft_max(eval.graph, x, mask, sinks, {}));
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(std::isnan(result[i])) << i << ": " << result[i];
    for (int i = 6; i < 8; ++i) EXPECT_GT(result[i], 0) << i;
    for (int i = 8; i < 12; ++i) EXPECT_EQ(result[i], 0) << i;
  }
}

TEST(SoftMax, LargeLogitsDoNotOverflow) {
  Eval eval;
  Tensor* x = eval.input({3, 1, 1, 1}, {3e38, 3e38, -3e38});
  EXPECT_TRUE(close_to(eval.run(soft_max(eval.graph, x, nullptr, nullptr, {})), {0.5, 0.5, 0}, kClose));
}

TEST(SoftMax, SinkReducesProbabilitiesOfItsHead) {
  Eval eval;
  Tensor* x = eval.input({2, 1, 3, 1}, {0, 0, 0, 0, -kInfinity, -kInfinity});
  Tensor* sinks = eval.input({3, 1, 1, 1}, {0, std::log(2.0), 1});
  const Values result = eval.run(soft_max(eval.graph, x, nullptr, sinks, {}));
  EXPECT_TRUE(close_to(result, {1.0 / 3, 1.0 / 3, 0.25, 0.25, 0, 0}, kClose));
}

TEST(SoftMax, LongRowsAddUpToOne) {
  Eval eval;
  Tensor* x = eval.input({100000, 1, 1, 1}, counting(100000, -1, 2e-5));
  const Values result = eval.run(soft_max(eval.graph, x, nullptr, nullptr, {}));
  double sum = 0;
  for (const double value : result) sum += value;
  EXPECT_NEAR(sum, 1, 1e-6);
}

}  // namespace
}  // namespace shoal::test
