// Tests of top_k and argmax with ties, infinities and NaN.
#include <gtest/gtest.h>

#include <limits>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"

namespace shoal::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Shape row_of(const Values& values) {
  return {static_cast<int64_t>(values.size()), 1, 1, 1};
}

Values best(const Values& x, int64_t k, DType dtype = DType::kF32) {
  Eval eval;
  return eval.run(top_k(eval.graph, eval.input(dtype, row_of(x), x), k));
}
Values sorted(const Values& x, DType dtype = DType::kF32) {
  return best(x, static_cast<int64_t>(x.size()), dtype);
}
Values largest(const Values& x) {
  Eval eval;
  return eval.run(argmax(eval.graph, eval.input(row_of(x), x)));
}

TEST(Order, KeepsTiesInOrder) {
  const Values x{2, 1, 2, 0, 1, 2};
  EXPECT_EQ(sorted(x), (Values{0, 2, 5, 1, 4, 3}));
  EXPECT_EQ(sorted(x, DType::kF16), (Values{0, 2, 5, 1, 4, 3}));
  EXPECT_EQ(best(x, 4), (Values{0, 2, 5, 1}));
  EXPECT_EQ(largest(x), Values{0});
}

/// A row of one element has no gaps, whatever its stride is.
TEST(Order, RowsOfOneElementMayHaveAnyStride) {
  const Values x{3, 1, 2, 5, 4};
  const Values first(5, 0);
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    Eval selects, finds;
    const auto column = [&](Eval& eval) { return transpose(eval.graph, eval.input(dtype, row_of(x), x)); };
    EXPECT_EQ(selects.run(top_k(selects.graph, column(selects), 1)), first);
    EXPECT_EQ(finds.run(argmax(finds.graph, column(finds))), first);
  }
}

TEST(Order, KeepsTiesInOrderInLongRows) {
  const Values zeros(5000, 0);
  EXPECT_EQ(sorted(zeros), counting(5000));
  EXPECT_EQ(best(zeros, 700), counting(700));
  EXPECT_EQ(largest(zeros), Values{0});
}

TEST(Order, NegativeZeroEqualsZero) {
  EXPECT_EQ(sorted({0.0, -0.0, 0.0}), (Values{0, 1, 2}));
  EXPECT_EQ(largest({-0.0, 0.0}), Values{0});
}

TEST(Order, NaNIsLessThanEverything) {
  const Values x{kNaN, -kInfinity, 1, kNaN, kInfinity};
  EXPECT_EQ(sorted(x), (Values{4, 2, 1, 0, 3}));
  EXPECT_EQ(best(x, 3), (Values{4, 2, 1}));
  EXPECT_EQ(largest(x), Values{4});
}

TEST(Order, ArgmaxPrefersMinusInfinityToNaN) {
  EXPECT_EQ(largest({-kInfinity, -kInfinity}), Values{0});
  EXPECT_EQ(largest({kNaN, -kInfinity}), Values{1});
  EXPECT_EQ(largest({kNaN, kNaN}), Values{0});
}

TEST(Order, ArgmaxFindsMaximumInMiddleOfLongRow) {
  Values x(3000, -1);
  x[1700] = x[2900] = 0.5;
  EXPECT_EQ(largest(x), Values{1700});
  EXPECT_EQ(best(x, 3), (Values{1700, 2900, 0}));
}

}  // namespace
}  // namespace shoal::test
