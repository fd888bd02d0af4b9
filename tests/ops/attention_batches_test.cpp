// Tests that the result of a query does not depend on the other queries of its batch: each query has the bits that it
// has alone, for every number of queries, other neighbours, and every number of threads. Run these tests with every
// SHOAL_CPU_ISA.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "graph/ops/ops.h"
#include "tests/ops/eval.h"

namespace shoal::test {
namespace {

constexpr int64_t kQueries = 100;

struct Config {
  DType dtype = DType::kF16;
  int64_t d = 32, e = 32, group = 4, kv_heads = 2;
  int64_t page = 0;  ///< 0: all queries have the same sequence
  AttentionParams params{.scale = 0.4f, .causal = true};
  bool sinks = false;
  int64_t rows = 768;  ///< number of rows per sequence
  int64_t parts = 1;
  bool latent = false;
  bool all_counts = false;  ///< whether all numbers of queries from 2 to 64 are tested
};

std::ostream& operator<<(std::ostream& out, const Config& n) {
  return out << name_of(n.dtype) << " d " << n.d << " e " << n.e << " group " << n.group << " page " << n.page
             << " rows " << n.rows << " window " << n.params.window << " softcap " << n.params.softcap << " sinks "
             << n.sinks << " parts " << n.parts;
}

/// kQueries queries of three sequences, at random positions, some of which are padding.
class Queries {
 public:
  explicit Queries(const Config& config) : n_(config) {
    std::mt19937 engine(5);
    const int64_t pages = n_.page > 0 ? n_.rows / n_.page : 0;
    for (int64_t i = 0; i < kQueries; ++i) {
      sequences_.push_back(static_cast<double>(engine() % 3));
      positions_.push_back(static_cast<double>(static_cast<int64_t>(engine() % (n_.rows + 1)) - 1));
      table_.resize(static_cast<size_t>(3 * pages));
    }
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), engine);
    for (double& value : q_) value = static_cast<double>(engine() >> 8) * 0x1p-23 - 1;
  }

  /// The results of queries that are computed in one batch. Each result consists of the rows of all heads and parts.
  std::vector<Values> run(Backend& backend, const std::vector<int64_t>& batch) {
    const auto t = static_cast<int64_t>(batch.size());
    const int64_t heads = n_.group * n_.kv_heads, row = n_.d * heads, rows = n_.page > 0 ? 3 * n_.rows : n_.rows;
    Graph graph;
    TensorContext caches;
    Tensor* q = graph.input("q", DType::kF32, {n_.d, heads, t, 1});
    Tensor* k = caches.add("k", n_.dtype, {n_.d, rows, n_.kv_heads, n_.parts}, Role::kCache);
    Tensor* v = n_.latent ? slice(graph, k, {0, 0, n_.e})
                          : caches.add("v", n_.dtype, {n_.e, rows, n_.kv_heads, n_.parts}, Role::kCache);
    Tensor* sinks = n_.sinks ? caches.add("sinks", DType::kF32, {heads, 1, 1, 1}, Role::kWeight) : nullptr;
    Tensor* positions = graph.input("positions", DType::kI32, {t, 1, 1, 1});
    Tensor* by_heads = permute(graph, q, {0, 2, 1, 3});
    AttentionParams params = n_.params;
    params.page = n_.page, params.parts = n_.parts > 1 ? n_.parts : 0;
    Tensor *node = nullptr, *table = nullptr, *sequences = nullptr;
    if (n_.page > 0) {
      table = graph.input("table", DType::kI32, {n_.rows / n_.page, 3, 1, 1});
      sequences = graph.input("sequences", DType::kI32, {t, 1, 1, 1});
      node = paged_attention(graph, by_heads, k, v, positions, sinks, table, sequences, params);
    } else {
      node = attention(graph, by_heads, k, v, positions, nullptr, sinks, params);
    }
    graph.output(node);
    if (stored_.empty()) {
      for (auto& [leaf, values] : random_leaves(graph, 3)) stored_[leaf->name] = values;
    }
    TensorValues leaves{{q, Values(t * row)}, {positions, Values(t)}};
    for (const Tensor* leaf : caches.tensors()) leaves[leaf] = stored_.at(leaf->name);
    if (n_.page > 0) leaves[table] = table_, leaves[sequences] = Values(t);
    for (int64_t i = 0; i < t; ++i) {
      const auto from = static_cast<size_t>(batch[i]);
      std::copy_n(q_.begin() + batch[i] * row, row, leaves[q].begin() + i * row);
      leaves[positions][i] = positions_[from];
      if (n_.page > 0) leaves[sequences][i] = sequences_[from];
    }
    const Values all = run_graph(backend, graph, leaves).at(node);
    std::vector<Values> results(batch.size());
    const int64_t size = node->shape[0] * heads;
    for (int64_t part = 0; part < node->shape[3]; ++part) {
      for (int64_t i = 0; i < t; ++i) {
        const auto from = all.begin() + (part * t + i) * size;
        results[i].insert(results[i].end(), from, from + size);
      }
    }
    return results;
  }

 private:
  Config n_;
  Values positions_, sequences_, table_;
  std::map<std::string, Values> stored_;  ///< values of caches and sinks
  Values q_ = Values(static_cast<size_t>(n_.d * n_.group * n_.kv_heads * kQueries));
};

void check(const Config& config) {
  SCOPED_TRACE(::testing::Message() << config);
  Queries queries(config);
  std::unique_ptr<Backend> backends[3];
  for (int i = 0; i < 3; ++i) backends[i] = Registry::instance().init(fmt::format("CPU0:threads={}", i + 1));
  std::vector<Values> alone;
  for (int64_t i = 0; i < kQueries; ++i) alone.push_back(queries.run(*backends[0], {i})[0]);
  std::mt19937 engine(11);
  std::vector<int64_t> all(kQueries);
  std::iota(all.begin(), all.end(), 0);
  std::vector<int64_t> counts{2, 3, 5, 7, 8, 9, 16, 17, 33, 63, 64, kQueries};
  if (config.all_counts) {
    counts.resize(63);
    std::iota(counts.begin(), counts.end(), 2);
  }
  for (const int64_t count : counts) {
    std::shuffle(all.begin(), all.end(), engine);
    const std::vector<int64_t> batch(all.begin(), all.begin() + count);
    const auto threads = static_cast<size_t>(count % 3);
    const std::vector<Values> results = queries.run(*backends[threads], batch);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(results[i], alone[batch[i]]) << "query " << i << " of " << count << ", " << threads + 1 << " threads";
    }
  }
}

TEST(AttentionBatches, DoNotChangeResults) {
  check({.rows = 96, .all_counts = true});
  check({.group = 1, .page = 32, .rows = 96, .all_counts = true});
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                            DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL}) {
    check({.dtype = dtype, .rows = 96});
    check({.dtype = dtype, .page = 32, .sinks = true, .rows = 96});
  }
}

TEST(AttentionBatches, DoNotChangeResultsOfOtherHeadSizes) {
  for (const int64_t page : {0, 20}) {
    check({.d = 7, .e = 19, .group = 1, .page = page, .rows = 80});
    check({.dtype = DType::kF32, .d = 80, .e = 33, .group = 3, .kv_heads = 1, .page = page, .rows = 80});
    check({.dtype = DType::kQ8_0, .d = 128, .e = 64, .group = 7, .kv_heads = 1, .page = page, .rows = 80});
    check({.d = 96, .e = 64, .group = 20, .kv_heads = 1, .page = page, .rows = 80, .latent = true});
  }
}

TEST(AttentionBatches, DoNotChangeResultsWithWindowsAndCaps) {
  for (const int64_t page : {0, 16, 64, 128}) {
    check({.page = page, .params = {.scale = 0.4f, .causal = true, .window = 70}, .sinks = true, .rows = 256});
    check({.page = page, .params = {.scale = 2, .softcap = 3, .causal = true}, .rows = 256});
    check({.page = page, .params = {.scale = 0.4f, .causal = true, .window = 5}, .rows = 256, .parts = 3});
  }
}

// There are up to nine segments of KV rows. In small batches, several threads process the rows of one query.
TEST(AttentionBatches, DoNotChangeResultsOfSeveralSegments) {
  check({.d = 16, .e = 16, .group = 2, .kv_heads = 1, .rows = 4608});
  check({.d = 16, .e = 16, .group = 2, .kv_heads = 1, .page = 64, .rows = 4608});
  check({.d = 16,
         .e = 16,
         .kv_heads = 1,
         .page = 512,
         .params = {.scale = 1, .causal = true, .window = 1500},
         .rows = 4608});
}

}  // namespace
}  // namespace shoal::test
