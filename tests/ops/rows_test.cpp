// Tests of get_rows and set_rows with ids inside and outside the range of rows. The last test joins quantised rows with
// concat.
#include <gtest/gtest.h>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"

namespace shoal::test {
namespace {

TEST(GetRows, IdsOutOfRangeGiveZeros) {
  Eval eval;
  Tensor* table = eval.input({2, 3, 1, 1}, {1, 2, 3, 4, 5, 6});
  const Values result = eval.run(get_rows(eval.graph, table, eval.integers({2, -1, 0, 3, 1000000})));
  EXPECT_EQ(result, (Values{5, 6, 0, 0, 1, 2, 0, 0, 0, 0}));
}

TEST(GetRows, RangesMapGlobalIdsToLocalRows) {
  Eval eval;
  Tensor* table = eval.input({1, 5, 1, 1}, {100, 110, 400, 410, 420});
  const SelectParams ranges{{{10, 2}, {40, 3}}};
  const Values result = eval.run(get_rows(eval.graph, table, eval.integers({42, 10, 12, 0, 40, 9, 11, 43}), ranges));
  EXPECT_EQ(result, (Values{420, 100, 0, 0, 400, 0, 110, 0}));
}

TEST(GetRows, IntegerTablesStayExact) {
  Eval eval;
  Tensor* table = eval.input(DType::kI32, {1, 2, 1, 1}, {2147483647, -2147483647});
  EXPECT_EQ(eval.run(get_rows(eval.graph, table, eval.integers({1, 0, 5}))), (Values{-2147483647, 2147483647, 0}));
}

TEST(SetRows, IdsOutOfRangeAreSkipped) {
  Eval eval;
  Tensor* cache = eval.cache(DType::kF16, {2, 3, 1, 1}, {1, 2, 3, 4, 5, 6});
  Tensor* rows = eval.input({2, 4, 1, 1}, {10, 20, 30, 40, 50, 60, 70, 80});
  EXPECT_EQ(eval.run(set_rows(eval.graph, cache, rows, eval.integers({-1, 2, 3, 0}))), (Values{70, 80, 3, 4, 30, 40}));
}

TEST(SetRows, RangesSkipRowsOfOtherDevices) {
  Eval eval;
  Tensor* cache = eval.cache(DType::kF32, {1, 3, 1, 1}, {1, 2, 3});
  Tensor* rows = eval.input({1, 3, 1, 1}, {10, 20, 30});
  const SelectParams ranges{{{4, 1}, {8, 2}}};
  EXPECT_EQ(eval.run(set_rows(eval.graph, cache, rows, eval.integers({9, 5, 4}), ranges)), (Values{30, 2, 10}));
}

TEST(SetRows, LastRowWinsForEqualIds) {
  constexpr int64_t kWidth = 512, kRows = 200;
  for (const char* spec : {"CPU0:threads=1", "CPU0:threads=3"}) {
    Eval eval;
    Values rows;
    for (int64_t i = 0; i < kRows; ++i) rows.insert(rows.end(), kWidth, static_cast<double>(i));
    Values ids(kRows);
    for (int64_t i = 0; i < kRows; ++i) ids[i] = static_cast<double>(i % 7);
    Tensor* cache = eval.cache(DType::kF32, {kWidth, 7, 1, 1}, Values(kWidth * 7));
    Tensor* node = set_rows(eval.graph, cache, eval.input({kWidth, kRows, 1, 1}, rows), eval.integers(ids));
    const Values result = eval.run(node, spec);
    for (int64_t slot = 0; slot < 7; ++slot) {
      const int64_t last = kRows - 1 - (kRows - 1 - slot) % 7;
      ASSERT_EQ(last % 7, slot);
      for (int64_t i = 0; i < kWidth; ++i) ASSERT_EQ(result[slot * kWidth + i], static_cast<double>(last)) << spec;
    }
  }
}

TEST(SetRows, LaterNodesSeeWrites) {
  Eval eval;
  Tensor* cache = eval.cache(DType::kF32, {2, 3, 1, 1}, {1, 2, 3, 4, 5, 6});
  Tensor* written = set_rows(eval.graph, cache, eval.input({2, 1, 1, 1}, {7, 8}), eval.integers({1}));
  Tensor* again = set_rows(eval.graph, written, eval.input({2, 1, 1, 1}, {9, 10}), eval.integers({2}));
  Tensor* doubled = scale(eval.graph, slice(eval.graph, again, {1, 1, 2}), {2, 0});
  EXPECT_EQ(eval.run(doubled), (Values{14, 16, 18, 20}));
}

TEST(Concat, CopiesQuantisedBlocksUnchanged) {
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0}) {
    Eval eval;
    // Each row contains only zeros and copies of one value. So encoding the rounded values again does not change these
    // values.
    Values a(32), b(64);
    for (size_t i = 0; i < a.size(); ++i) a[i] = i % 2 ? -8 : 0;
    for (size_t i = 0; i < b.size(); ++i) b[i] = i % 4 ? -16 : 0;
    Tensor* joined = concat(eval.graph, {eval.input(dtype, {32, 1, 1, 1}, a), eval.input(dtype, {64, 1, 1, 1}, b)}, 0);
    Values expected = rounded(dtype, a);
    const Values tail = rounded(dtype, b);
    expected.insert(expected.end(), tail.begin(), tail.end());
    EXPECT_EQ(eval.run(joined), expected) << name_of(dtype);
  }
}

}  // namespace
}  // namespace shoal::test
