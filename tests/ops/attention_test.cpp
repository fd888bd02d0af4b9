// Tests of attention with small examples and edge cases. If heads have one dimension and q = 0, all visible rows have
// the same weight. The result is then the mean of v over the visible rows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"
#include "tests/support/reference.h"

namespace shoal::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr Tolerance kClose{1e-12};

TEST(Attention, CausalQueriesSeeRowsUpToTheirPosition) {
  Eval eval;
  Tensor* q = eval.input({1, 3, 1, 1}, {0, 0, 0});
  Tensor* k = eval.input({1, 4, 1, 1}, {1, 1, 1, 1});
  Tensor* v = eval.input({1, 4, 1, 1}, {10, 20, 60, 1000});
  Tensor* positions = eval.integers({0, 1, 2});
  const Values result =
      eval.run(attention(eval.graph, q, k, v, positions, nullptr, nullptr, {.scale = 1, .causal = true}));
  EXPECT_TRUE(close_to(result, {10, 15, 30}, kClose));
}

TEST(Attention, RowsOutsideTheWindowMayHoldNaN) {
  Eval eval;
  Tensor* q = eval.input({1, 2, 1, 1}, {1, 1});
  Tensor* k = eval.input({1, 5, 1, 1}, {kNaN, 1, 1, kNaN, kInfinity});
  Tensor* v = eval.input({1, 5, 1, 1}, {kNaN, 3, 5, kNaN, kInfinity});
  Tensor* positions = eval.integers({1, 2});
  const Values result =
      eval.run(attention(eval.graph, q, k, v, positions, nullptr, nullptr, {.scale = 1, .causal = true, .window = 1}));
  EXPECT_TRUE(close_to(result, {3, 5}, kClose));
}

TEST(Attention, MaskedRowsMayHoldNaN) {
  Eval eval;
  Tensor* q = eval.input({1, 2, 1, 1}, {1, 1});
  Tensor* k = eval.input({1, 3, 1, 1}, {2, kNaN, 2});
  Tensor* v = eval.input({1, 3, 1, 1}, {4, kNaN, 8});
  Tensor* mask = eval.input({3, 2, 1, 1}, {0, -kInfinity, 0, -kInfinity, -kInfinity, 0});
  const Values result = eval.run(attention(eval.graph, q, k, v, nullptr, mask, nullptr, {.scale = 1}));
  EXPECT_TRUE(close_to(result, {6, 8}, kClose));
}

/// Divides five rows of one sequence into two parts: rows 0, 2 and 4, and rows 1 and 3. In each part, a query sees the
/// rows up to the position of the query. Returns the merged result.
Values merged_parts(const Values& scores, const Values& values, const Values& positions) {
  Eval eval;
  const int64_t t = static_cast<int64_t>(positions.size());
  Values last;
  for (const double part : {0.0, 1.0}) {
    for (const double position : positions) last.push_back(std::floor((position - part) / 2));
  }
  const auto dealt = [](const Values& x) { return Values{x[0], x[2], x[4], x[1], x[3], kNaN}; };
  Tensor* q = eval.input({1, t, 1, 1}, Values(positions.size(), 1));
  Tensor* k = eval.cache(DType::kF32, {1, 3, 1, 2}, dealt(scores));
  Tensor* v = eval.cache(DType::kF32, {1, 3, 1, 2}, dealt(values));
  Tensor* each = attention(eval.graph, q, k, v, eval.input(DType::kI32, {t, 2, 1, 1}, last), nullptr, nullptr,
                           {.scale = 1, .causal = true, .parts = 2});
  Tensor* lse = permute(eval.graph, slice(eval.graph, each, {0, 1, 1}), {3, 1, 2, 0});
  return eval.run(merge_attention(eval.graph, each, lse));
}

TEST(Attention, MergedPartsEqualAttentionOverAllRows) {
  const Values scores{0.5, -3, 2, 80, -200}, values{3, 5, -7, 11, 13}, positions{0, 1, 2, 3, 4, -1};
  Eval eval;
  Tensor* q = eval.input({1, 6, 1, 1}, Values(6, 1));
  Tensor* all = attention(eval.graph, q, eval.input({1, 5, 1, 1}, scores), eval.input({1, 5, 1, 1}, values),
                          eval.integers(positions), nullptr, nullptr, {.scale = 1, .causal = true});
  const Values expected = eval.run(all);
  EXPECT_EQ(expected.back(), 0) << "the last query sees no row";
  EXPECT_TRUE(close_to(merged_parts(scores, values, positions), expected, kClose));
}

TEST(Attention, LseIncludesSinkAndMayBeMinusInfinity) {
  Eval eval;
  Tensor* q = eval.input({1, 2, 2, 1}, {1, 1, 1, 1});
  Tensor* k = eval.input({1, 2, 1, 1}, {std::log(3.0), std::log(5.0)});
  Tensor* v = eval.input({1, 2, 1, 1}, {2, 2});
  Tensor* sinks = eval.input({2, 1, 1, 1}, {-kInfinity, std::log(8.0)});
  const AttentionParams params{.scale = 1, .causal = true, .parts = 1};
  const Values result = eval.run(attention(eval.graph, q, k, v, eval.integers({1, -1}), nullptr, sinks, params));
  // The result contains a value and an lse for each query and head. The first query sees both rows. The second query
  // sees no row.
  EXPECT_TRUE(close_to(result, {2, std::log(8.0), 1, std::log(16.0), 0, -kInfinity, 0, std::log(8.0)}, kClose));
}

TEST(Attention, WindowEndsAtTheQueryPosition) {
  Eval eval;
  Tensor* q = eval.input({1, 2, 1, 1}, {0, 0});
  Tensor* k = eval.input({1, 5, 1, 1}, Values(5, 0));
  Tensor* v = eval.input({1, 5, 1, 1}, {1, 2, 4, 8, 16});
  Tensor* positions = eval.integers({1, 4});
  const Values result =
      eval.run(attention(eval.graph, q, k, v, positions, nullptr, nullptr, {.scale = 1, .causal = true, .window = 3}));
  EXPECT_TRUE(close_to(result, {1.5, 28.0 / 3}, kClose));
}

TEST(Attention, QueryWithoutVisibleRowsGivesZeros) {
  Eval eval;
  Tensor* q = eval.input({2, 3, 1, 1}, Values(6, 1));
  Tensor* k = eval.input({2, 2, 1, 1}, Values(4, 1));
  Tensor* v = eval.input({2, 2, 1, 1}, Values(4, 7));
  Tensor* mask = eval.input({2, 3, 1, 1}, {0, 0, -kInfinity, -kInfinity, 0, 0});
  Tensor* positions = eval.integers({-1, 1, 1});
  Tensor* sinks = eval.input({1, 1, 1, 1}, {-100});
  const Values result = eval.run(attention(eval.graph, q, k, v, positions, mask, sinks, {.scale = 1, .causal = true}));
  EXPECT_TRUE(close_to(result, {0, 0, 0, 0, 7, 7}, kClose));
}

TEST(Attention, SinkReducesWeightsOfRows) {
  Eval eval;
  Tensor* q = eval.input({1, 1, 2, 1}, {0, 0});
  Tensor* k = eval.input({1, 2, 1, 1}, {0, 0});
  Tensor* v = eval.input({1, 2, 1, 1}, {6, 12});
  Tensor* sinks = eval.input({2, 1, 1, 1}, {0, std::log(4.0)});
  // Each of the two rows has weight 1. The sinks of the two heads have weights 1 and 4.
  const Values result = eval.run(attention(eval.graph, q, k, v, nullptr, nullptr, sinks, {.scale = 1}));
  EXPECT_TRUE(close_to(result, {6, 3}, kClose));
}

TEST(Attention, SoftcapLimitsScores) {
  Eval eval;
  Tensor* q = eval.input({1, 1, 1, 1}, {1});
  Tensor* k = eval.input({1, 2, 1, 1}, {30, -30});
  Tensor* v = eval.input({1, 2, 1, 1}, {1, 0});
  const double capped = 2 * std::tanh(30 * 0.1 / 2);
  const Values result =
      eval.run(attention(eval.graph, q, k, v, nullptr, nullptr, nullptr, {.scale = 0.1f, .softcap = 2}));
  EXPECT_TRUE(close_to(result, {1 / (1 + std::exp(-2 * capped))}, kClose));
}

TEST(Attention, HeadsShareTheKvHeadOfTheirGroup) {
  Eval eval;
  Tensor* q = eval.input({1, 1, 6, 1}, Values(6, 0));
  Tensor* k = eval.input({1, 1, 3, 1}, {0, 0, 0});
  Tensor* v = eval.input({1, 1, 3, 1}, {1, 2, 3});
  const Values result = eval.run(attention(eval.graph, q, k, v, nullptr, nullptr, nullptr, {.scale = 1}));
  EXPECT_EQ(result, (Values{1, 1, 2, 2, 3, 3}));
}

TEST(Attention, LargeScoreDifferencesDoNotOverflow) {
  Eval eval;
  Tensor* q = eval.input({1, 1, 1, 1}, {1});
  // The 1500 rows form three segments. The largest score is in the middle segment.
  Values keys(1500, -3e38), values(1500, 5);
  keys[700] = 3e38;
  values[700] = 42;
  Tensor* k = eval.input({1, 1500, 1, 1}, keys);
  Tensor* v = eval.input({1, 1500, 1, 1}, values);
  EXPECT_EQ(eval.run(attention(eval.graph, q, k, v, nullptr, nullptr, nullptr, {.scale = 1})), Values{42});
}

// The result of a head must not depend on the device's other heads or on the number of threads.
void check_shards(int64_t queries) {
  constexpr int64_t kDim = 24, kRows = 1300, kHeads = 12, kKvHeads = 3;
  const auto run = [&](int64_t first, int64_t heads, const std::string& spec) {
    Graph graph;
    TensorContext weights;
    Tensor* q = graph.input("q", DType::kF32, {kDim, queries, kHeads, 1});
    Tensor* k = weights.add("k", DType::kF16, {kDim, kRows, kKvHeads, 1}, Role::kCache);
    Tensor* v = weights.add("v", DType::kF16, {kDim, kRows, kKvHeads, 1}, Role::kCache);
    Tensor* positions = graph.input("positions", DType::kI32, {queries, 1, 1, 1});
    const int64_t group = kHeads / kKvHeads, kv = first / group, kv_heads = std::max<int64_t>(heads / group, 1);
    Tensor* node =
        attention(graph, slice(graph, q, {2, first, heads}), slice(graph, k, {2, kv, kv_heads}),
                  slice(graph, v, {2, kv, kv_heads}), positions, nullptr, nullptr, {.scale = 0.2f, .causal = true});
    graph.output(node);
    TensorValues leaves = random_leaves(graph, 5);
    leaves[positions] = counting(queries, 1200);
    const auto backend = Registry::instance().init(spec);
    return run_graph(*backend, graph, leaves).at(node);
  };
  const Values all = run(0, kHeads, "CPU0:threads=1");
  for (const int64_t heads : {1, 2, 4, 8}) {
    for (int64_t first = 0; first + heads <= kHeads; first += heads) {
      const Values some = run(first, heads, "CPU0:threads=3");
      for (int64_t query = 0; query < queries; ++query) {
        for (int64_t i = 0; i < kDim * heads; ++i) {
          ASSERT_EQ(some[query * kDim * heads + i], all[query * kDim * kHeads + first * kDim + i])
              << heads << " heads from " << first << ", query " << query << ", element " << i;
        }
      }
    }
  }
}

TEST(Attention, HeadsHaveTheSameBitsInEveryShard) {
  for (const int64_t queries : {1, 5, 21}) check_shards(queries);
}

}  // namespace
}  // namespace shoal::test
