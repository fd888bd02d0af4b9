// soft_max at its edges: masked rows, sinks, large logits.
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

TEST(SoftMax, WhollyMaskedRowsAreZeros) {
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

TEST(SoftMax, LargeLogitsDoNotOverflow) {
  Eval eval;
  Tensor* x = eval.input({3, 1, 1, 1}, {3e38, 3e38, -3e38});
  EXPECT_TRUE(close_to(eval.run(soft_max(eval.graph, x, nullptr, nullptr, {})), {0.5, 0.5, 0}, kClose));
}

TEST(SoftMax, SinkOfTheHeadTakesItsShare) {
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
