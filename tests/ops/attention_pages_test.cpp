// Tests of attention to the pages of several sequences. The result of a query must have the bits that attention to the
// rows of its sequence alone gives.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"
#include "tests/support/reference.h"

namespace shoal::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Queries that are consecutive in a batch: `count` queries of `sequence`. The first query has the position `position`.
struct Chunk {
  int64_t sequence, position, count;
};

struct Sizes {
  DType dtype = DType::kF16;
  int64_t d = 64, e = 64, group = 4, kv_heads = 2, page = 32, pages = 20, width = 8, sequences = 4;
  AttentionParams params{.scale = 0.2f, .causal = true};
  bool sinks = false;
};

/// Attention to pages. Page `number * step % pages` is page `number / sequences` of sequence `number % sequences`.
struct Paged {
  Paged(const Sizes& sizes, const std::vector<Chunk>& chunks, int64_t step = 7) : n(sizes) {
    for (const Chunk& chunk : chunks) {
      for (int64_t i = 0; i < chunk.count; ++i) {
        sequences.push_back(static_cast<double>(chunk.sequence));
        positions.push_back(static_cast<double>(chunk.position < 0 ? -1 : chunk.position + i));
      }
    }
    const auto t = static_cast<int64_t>(positions.size());
    for (int64_t sequence = 0; sequence < n.sequences; ++sequence) {
      for (int64_t i = 0; i < n.width; ++i) {
        table.push_back(static_cast<double>((i * n.sequences + sequence) * step % n.pages));
      }
    }
    q = graph.input("q", DType::kF32, {n.d, t, n.group * n.kv_heads, 1});
    k = caches.add("k", n.dtype, {n.d, n.page * n.pages, n.kv_heads, 1}, Role::kCache);
    v = caches.add("v", n.dtype, {n.e, n.page * n.pages, n.kv_heads, 1}, Role::kCache);
    at = graph.input("positions", DType::kI32, {t, 1, 1, 1});
    pages = graph.input("table", DType::kI32, {n.width, n.sequences, 1, 1});
    owners = graph.input("sequences", DType::kI32, {t, 1, 1, 1});
    if (n.sinks) sinks = caches.add("sinks", DType::kF32, {n.group * n.kv_heads, 1, 1, 1}, Role::kWeight);
    AttentionParams params = n.params;
    params.page = n.page;
    node = graph.output(paged_attention(graph, q, k, v, at, sinks, pages, owners, params));
    leaves = random_leaves(graph, 7);
    leaves[at] = positions, leaves[pages] = table, leaves[owners] = sequences;
  }
  Values run(const std::string& spec = "CPU0:threads=2") {
    const auto backend = Registry::instance().init(spec);
    return run_graph(*backend, graph, leaves).at(node);
  }
  /// The bits that attention without pages gives. Each chunk is computed alone, from rows of its sequence.
  Values run_without_pages(const std::vector<Chunk>& chunks) {
    Values result;
    int64_t first = 0;
    for (const Chunk& chunk : chunks) {
      Graph alone;
      TensorContext rows;
      Tensor* queries = alone.input("q", DType::kF32, {n.d, chunk.count, n.group * n.kv_heads, 1});
      Tensor* keys = rows.add("k", n.dtype, {n.d, n.page * n.width, n.kv_heads, 1}, Role::kCache);
      Tensor* values = rows.add("v", n.dtype, {n.e, n.page * n.width, n.kv_heads, 1}, Role::kCache);
      Tensor* positions = alone.input("positions", DType::kI32, {chunk.count, 1, 1, 1});
      Tensor* sink = n.sinks ? rows.add("sinks", DType::kF32, sinks->shape, Role::kWeight) : nullptr;
      Tensor* one = alone.output(attention(alone, queries, keys, values, positions, nullptr, sink, n.params));
      TensorValues given = random_leaves(alone, 1);
      const auto t = static_cast<int64_t>(leaves[at].size());
      for (int64_t head = 0; head < n.group * n.kv_heads; ++head) {
        const auto from = leaves[q].begin() + (head * t + first) * n.d;
        std::copy(from, from + chunk.count * n.d, given[queries].begin() + head * chunk.count * n.d);
      }
      const auto gather = [&](const Tensor* pool, const Tensor* to) {
        for (int64_t head = 0; head < n.kv_heads; ++head) {
          for (int64_t row = 0; row < n.page * n.width; ++row) {
            const auto page = static_cast<int64_t>(table[chunk.sequence * n.width + row / n.page]);
            const int64_t source = head * n.page * n.pages + page * n.page + row % n.page, size = pool->shape[0];
            std::copy_n(leaves[pool].begin() + source * size, size,
                        given[to].begin() + (head * n.page * n.width + row) * size);
          }
        }
      };
      gather(k, keys), gather(v, values);
      given[positions] = counting(chunk.count, static_cast<double>(chunk.position));
      if (n.sinks) given[sink] = leaves[sinks];
      const auto backend = Registry::instance().init("CPU0:threads=1");
      const Values some = run_graph(*backend, alone, given).at(one);
      result.insert(result.end(), some.begin(), some.end());
      first += chunk.count;
    }
    return result;
  }

  Sizes n;
  Graph graph;
  TensorContext caches;
  Values positions, sequences, table;
  Tensor *q, *k, *v, *at, *pages, *owners, *sinks = nullptr, *node;
  TensorValues leaves;
};

std::ostream& operator<<(std::ostream& out, const Sizes& n) {
  return out << name_of(n.dtype) << " d " << n.d << " e " << n.e << " group " << n.group << " page " << n.page
             << " width " << n.width << " window " << n.params.window << " softcap " << n.params.softcap;
}

void check_bits(const Sizes& sizes, const std::vector<Chunk>& chunks) {
  SCOPED_TRACE(::testing::Message() << sizes);
  for (const int64_t step : {1, 7}) {
    Paged paged(sizes, chunks, step);
    const Values expected = paged.run_without_pages(chunks);
    for (const std::string spec : {"CPU0:threads=1", "CPU0:threads=2", "CPU0:threads=7"}) {
      ASSERT_EQ(paged.run(spec), expected) << spec << ", step " << step;
    }
  }
}

TEST(AttentionPages, HaveTheBitsOfRowsWithoutPages) {
  const std::vector<Chunk> chunks{{2, 100, 1}, {0, 255, 1}, {1, 0, 40}, {3, 31, 2}, {2, 120, 9}, {0, 3, 5}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_1}) {
    check_bits({.dtype = dtype}, chunks);
    check_bits({.dtype = dtype, .d = 96, .e = 32, .sinks = true}, chunks);
  }
  check_bits({.d = 20, .e = 12, .group = 1}, chunks);
  check_bits({.d = 32, .e = 32, .group = 70, .kv_heads = 1}, chunks);
}

TEST(AttentionPages, HaveTheBitsOfRowsWithoutPagesForEveryPageSize) {
  const std::vector<Chunk> chunks{{1, 150, 1}, {0, 130, 30}, {1, 151, 3}};
  for (const int64_t page : {1, 3, 16, 20, 64, 100, 128, 192}) {
    const int64_t width = 192 / page;
    for (const int64_t window : {0, 50}) {
      check_bits({.page = page,
                  .pages = 2 * width + 3,
                  .width = width,
                  .sequences = 2,
                  .params = {.scale = 0.2f, .softcap = 3, .causal = true, .window = window}},
                 {{1, width * page - 40, 1}, {0, width * page - 60, 30}, {1, width * page - 39, 3}});
    }
  }
}

// Several segments per sequence. Few tiles are divided along the KV rows, and many tiles are not.
TEST(AttentionPages, HaveTheBitsOfRowsWithoutPagesInSeveralSegments) {
  const Sizes sizes{.d = 32, .e = 32, .kv_heads = 1, .page = 64, .pages = 64, .width = 20, .sequences = 3};
  check_bits(sizes, {{1, 1270, 1}});
  check_bits(sizes, {{1, 1270, 1}, {0, 600, 1}, {2, 4, 1}});
  check_bits(sizes, {{1, 700, 30}, {0, 900, 12}, {1, 1250, 30}, {2, 1, 100}});
}

// A page outside the pool has no rows. Reading it would give NaN or access foreign memory.
TEST(AttentionPages, MissingPagesAreHidden) {
  const Sizes sizes{
      .d = 32, .e = 32, .page = 16, .width = 6, .sequences = 2, .params = {.scale = 0.2f, .causal = true}};
  for (const std::vector<Chunk>& chunks :
       {std::vector<Chunk>{{0, 90, 1}, {1, 60, 2}}, {{0, 50, 40}, {1, 3, 20}}, {{1, 95, 1}}}) {
    Paged paged(sizes, chunks);
    for (const int64_t hole : {0, 1, 3, 6, 7, 11}) {
      for (const double missing : {-1.0, 20.0, 2e9, -2e9}) {
        paged.leaves[paged.pages] = paged.table;
        paged.leaves[paged.pages][hole] = missing;
        EXPECT_TRUE(close_to(paged.run(), reference_eval(paged.graph, paged.leaves).at(paged.node), {1e-11}))
            << "hole " << hole << ", page " << missing;
      }
    }
    std::fill(paged.leaves[paged.pages].begin(), paged.leaves[paged.pages].end(), -1);
    for (const double value : paged.run()) ASSERT_EQ(value, 0);
  }
}

TEST(AttentionPages, PaddingAndUnknownSequencesGiveZeros) {
  const Sizes sizes{.d = 32, .e = 32, .page = 16, .width = 6, .sequences = 2};
  const std::vector<Chunk> chunks{{0, 90, 2}, {0, -1, 1}, {-1, 10, 1}, {2, 10, 12}, {1, -1, 3}, {1, 20, 2}};
  Paged paged(sizes, chunks);
  const Values result = paged.run();
  const int64_t row = sizes.e * sizes.group * sizes.kv_heads;
  for (int64_t query = 0; query < 21; ++query) {
    const bool sees = query < 2 || query >= 19;
    for (int64_t i = 0; i < row; ++i) ASSERT_EQ(result[query * row + i] != 0, sees) << "query " << query;
  }
  EXPECT_TRUE(close_to(result, reference_eval(paged.graph, paged.leaves).at(paged.node), {1e-11}));
}

// Pages that are not in the table contain NaN, as do rows after the last position of a sequence.
TEST(AttentionPages, OtherPagesAndLaterRowsMayContainNaN) {
  const Sizes sizes{.d = 32, .e = 32, .group = 2, .kv_heads = 1, .page = 16, .pages = 30, .width = 6, .sequences = 2};
  const std::vector<Chunk> chunks{{0, 90, 1}, {1, 60, 12}, {0, 91, 2}};
  Paged clean(sizes, chunks), dirty(sizes, chunks);
  std::vector<bool> seen(static_cast<size_t>(sizes.page * sizes.pages));
  for (int64_t sequence = 0; sequence < 2; ++sequence) {
    for (int64_t row = 0; row < (sequence == 0 ? 93 : 72); ++row) {
      const auto page = static_cast<int64_t>(clean.table[sequence * sizes.width + row / sizes.page]);
      seen[static_cast<size_t>(page * sizes.page + row % sizes.page)] = true;
    }
  }
  for (size_t i = 0; i < seen.size() * 32; ++i) {
    if (!seen[i / 32]) dirty.leaves[dirty.k][i] = dirty.leaves[dirty.v][i] = kNaN;
  }
  EXPECT_EQ(dirty.run(), clean.run());
}

}  // namespace
}  // namespace shoal::test
