// Tests edge cases of the two attention kernels of CPU devices. One kernel is for few queries. The other kernel
// computes many queries in SIMD lanes. The sizes of heads, groups, prompts and caches do not fill vectors, tiles or
// blocks. Some queries of a tile see rows with NaN, and other queries of this tile do not see these rows. Run these
// tests with every SHOAL_CPU_ISA.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"
#include "tests/support/reference.h"

namespace shoal::test {
namespace {

struct Sizes {
  DType keys = DType::kF16, values = DType::kF16;
  int64_t d = 64, e = 64, t = 1, s = 200, group = 4, kv_heads = 2;
  AttentionParams params{.scale = 0.2f, .causal = true};
  bool mask = false;
  bool latent = false;  ///< whether each value row is the beginning of its key row
};

std::ostream& operator<<(std::ostream& out, const Sizes& n) {
  return out << name_of(n.keys) << "/" << name_of(n.values) << " d " << n.d << " e " << n.e << " t " << n.t << " s "
             << n.s << " group " << n.group << " window " << n.params.window << " mask " << n.mask << " latent "
             << n.latent;
}

/// An attention node and its leaves. In memory, keys are [d, kv, s], so the rows of a KV head have gaps. Values are [e,
/// s, kv], so the rows of a KV head have no gaps.
struct Attention {
  explicit Attention(const Sizes& n) {
    q = graph.input("q", DType::kF32, {n.d, n.group * n.kv_heads, n.t, 1});
    k = caches.add("k", n.keys, {n.d, n.kv_heads, n.s, 1}, Role::kCache);
    Tensor* keys = permute(graph, k, {0, 2, 1, 3});
    v = n.latent ? slice(graph, keys, {0, 0, n.e}) : caches.add("v", n.values, {n.e, n.s, n.kv_heads, 1}, Role::kCache);
    positions = graph.input("positions", DType::kI32, {n.t, 1, 1, 1});
    if (n.mask) mask = graph.input("mask", DType::kF16, {n.s, n.t, 1, 1});
    node = graph.output(attention(graph, permute(graph, q, {0, 2, 1, 3}), keys, v, positions, mask, nullptr, n.params));
    leaves = random_leaves(graph, 7);
    leaves[positions] = counting(n.t, static_cast<double>(n.s - n.t - 3));
  }
  void check(const std::string& spec = "CPU0:threads=2") {
    const auto backend = Registry::instance().init(spec);
    EXPECT_TRUE(close_to(run_graph(*backend, graph, leaves).at(node), reference_eval(graph, leaves).at(node), {1e-11}));
  }

  Graph graph;
  TensorContext caches;
  Tensor *q, *k, *v, *positions, *mask = nullptr, *node;
  TensorValues leaves;
};

void check(const Sizes& sizes) {
  SCOPED_TRACE(::testing::Message() << sizes);
  Attention(sizes).check();
}

TEST(AttentionForms, MatchReferenceForEveryHeadSize) {
  for (const int64_t t : {1, 3, 9}) {
    for (const int64_t d : {1, 3, 16, 40, 64, 80, 96, 128, 256}) {
      check({.d = d, .e = 64, .t = t});
      check({.keys = DType::kF32, .values = DType::kBF16, .d = 64, .e = d, .t = t});
    }
    for (const int64_t d : {32, 96, 160}) check({.keys = DType::kQ8_0, .values = DType::kQ8_0, .d = d, .e = d, .t = t});
  }
}

TEST(AttentionForms, MatchReferenceForEveryGroupAndPromptSize) {
  for (const int64_t group : {1, 2, 3, 7, 8, 16, 21, 65}) {
    for (const int64_t t : {1, 2, 7, 8, 17}) check({.d = 32, .e = 32, .t = t, .group = group});
  }
  for (const int64_t t : {63, 64, 65, 130}) check({.d = 32, .e = 32, .t = t, .group = 1});
}

TEST(AttentionForms, MatchReferenceForLatentHeads) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const int64_t group : {5, 16, 20, 64, 128}) {
      for (const int64_t t : {1, 3, 9}) {
        Sizes sizes{.keys = dtype, .d = 576, .e = 512, .t = t, .s = 100, .group = group, .kv_heads = 1, .latent = true};
        sizes.params.scale = 0.05f;
        check(sizes);
      }
    }
    check({.keys = dtype, .d = 96, .e = 64, .t = 2, .s = 1100, .group = 30, .kv_heads = 1, .latent = true});
    check(
        {.keys = dtype, .d = 96, .e = 32, .t = 30, .s = 200, .group = 3, .kv_heads = 2, .mask = true, .latent = true});
  }
}

TEST(AttentionForms, MatchReferenceAtBlockAndSegmentEdges) {
  for (const int64_t s : {5, 64, 67, 68, 131, 515, 516, 1031}) {
    for (const int64_t t : {1, 2}) check({.t = t, .s = s});
    if (s > 20) check({.t = 12, .s = s});
  }
}

TEST(AttentionForms, MatchReferenceWithWindowsAndMasks) {
  for (const int64_t t : {1, 5, 40}) {
    for (const int64_t window : {1, 5, 64, 100}) {
      check({.t = t, .s = 700, .params = {.scale = 0.2f, .causal = true, .window = window}});
    }
    check({.t = t, .s = 300, .mask = true});
    check({.keys = DType::kQ8_0, .t = t, .s = 300, .params = {.scale = 2, .softcap = 3, .causal = true}, .mask = true});
  }
}

// One row of the cache contains NaN and infinity. Only queries that see this row may give results that are not finite.
TEST(AttentionForms, NaNRowsReachOnlyQueriesThatSeeThem) {
  for (const int64_t t : {3, 30}) {
    for (const int64_t window : {0, 9}) {
      const Sizes sizes{.d = 32, .e = 32, .t = t, .s = 90, .params = {.scale = 0.2f, .causal = true, .window = window}};
      SCOPED_TRACE(::testing::Message() << sizes);
      Attention clean(sizes);
      const auto backend = Registry::instance().init("CPU0:threads=2");
      const Values expected = run_graph(*backend, clean.graph, clean.leaves).at(clean.node);
      const int64_t first = sizes.s - t - 3, row_of_query = sizes.e * sizes.group * sizes.kv_heads;
      for (const int64_t bad : {first + 1, first + t / 2, first + t - 1}) {  // this row is visible to all queries from
                                                                             // index `bad - first` on
        Attention dirty(sizes);
        for (int64_t i = 0; i < sizes.d * sizes.kv_heads; ++i) {
          dirty.leaves[dirty.k][bad * sizes.d * sizes.kv_heads + i] = std::numeric_limits<double>::quiet_NaN();
        }
        for (int64_t kv = 0; kv < sizes.kv_heads; ++kv) {
          for (int64_t i = 0; i < sizes.e; ++i) {
            dirty.leaves[dirty.v][(kv * sizes.s + bad) * sizes.e + i] = std::numeric_limits<double>::infinity();
          }
        }
        const Values got = run_graph(*backend, dirty.graph, dirty.leaves).at(dirty.node);
        for (int64_t query = 0; query < t; ++query) {
          const bool sees = query >= bad - first && (window == 0 || bad > first + query - window);
          for (int64_t i = query * row_of_query; i < (query + 1) * row_of_query; ++i) {
            ASSERT_TRUE(sees ? !std::isfinite(got[i]) : got[i] == expected[i])
                << "query " << query << ", bad row " << bad << ": " << got[i] << ", " << expected[i] << " without it";
          }
        }
      }
    }
  }
}

// A range of rows has NaN scores: all rows, a block, a segment, or one row. If a query sees such a row, all elements of
// the query's result are NaN. A query that sees no row gives zeros.
TEST(AttentionForms, NaNScoresReachOnlyQueriesThatSeeThem) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  struct Range {
    int64_t begin, end;
  };
  for (const int64_t t : {1, 3, 30}) {
    for (const Range nan : {Range{0, 1200}, {0, 64}, {64, 128}, {0, 512}, {512, 1024}, {1024, 1200}, {700, 701}}) {
      for (const bool negative : {false, true}) {
        const Sizes sizes{.d = 32, .e = 32, .t = t, .s = 1200, .mask = true};
        SCOPED_TRACE(::testing::Message() << sizes << ", NaN in [" << nan.begin << ", " << nan.end << ")");
        Attention clean(sizes);
        // The rows with NaN are invisible to every second query. If there are several queries, the last query sees no
        // rows.
        for (int64_t query = 0; query < t; ++query) {
          for (int64_t row = 0; row < sizes.s; ++row) {
            const bool hidden = (query % 2 == 1 && row >= nan.begin && row < nan.end) || (query > 0 && query == t - 1);
            clean.leaves[clean.mask][query * sizes.s + row] = hidden ? -std::numeric_limits<double>::infinity() : 0.5;
          }
        }
        Attention dirty(sizes);
        dirty.leaves[dirty.mask] = clean.leaves[clean.mask];
        const int64_t row_of_keys = sizes.d * sizes.kv_heads, row_of_query = sizes.e * sizes.group * sizes.kv_heads;
        for (int64_t i = nan.begin * row_of_keys; i < nan.end * row_of_keys; ++i) {
          dirty.leaves[dirty.k][i] = negative ? -kNaN : kNaN;
        }
        for (const std::string spec : {"CPU0:threads=1", "CPU0:threads=3"}) {
          const auto backend = Registry::instance().init(spec);
          const Values expected = run_graph(*backend, clean.graph, clean.leaves).at(clean.node);
          const Values got = run_graph(*backend, dirty.graph, dirty.leaves).at(dirty.node);
          for (int64_t i = 0; i < t * row_of_query; ++i) {
            const int64_t query = i / row_of_query;
            const bool none = query > 0 && query == t - 1, sees = query % 2 == 0 && !none;
            ASSERT_TRUE(sees ? std::isnan(got[i]) : got[i] == expected[i] && (!none || got[i] == 0))
                << spec << ", query " << query << ": " << got[i] << ", " << expected[i] << " without NaN";
          }
        }
      }
    }
  }
}

TEST(AttentionForms, NaNQueriesGiveNaN) {
  for (const int64_t t : {1, 3, 30}) {
    Attention clean({.t = t, .s = 700});
    Attention dirty({.t = t, .s = 700});
    const int64_t row = 64 * 4 * 2, bad = t / 2;
    dirty.leaves[dirty.q][bad * row + 5] = std::numeric_limits<double>::quiet_NaN();  // NaN in head 0
    const auto backend = Registry::instance().init("CPU0:threads=2");
    const Values expected = run_graph(*backend, clean.graph, clean.leaves).at(clean.node);
    const Values got = run_graph(*backend, dirty.graph, dirty.leaves).at(dirty.node);
    for (int64_t i = 0; i < t * row; ++i) {
      const bool odd = i / row == bad && i % row < 64;
      ASSERT_TRUE(odd ? std::isnan(got[i]) : got[i] == expected[i]) << "element " << i << " of " << t << " queries";
    }
  }
}

}  // namespace
}  // namespace shoal::test
