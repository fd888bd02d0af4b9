// Tests of attention to pages, and of the promise that a row of the result has the same bits in every batch: alone,
// with other queries, with and without pages, and on GPUs of any size.
#include <gtest/gtest.h>

#include "devices/cuda/ops/attention.h"
#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"

namespace shoal::test {
namespace {

using cuda::attention::Choice;

cuda::GpuTraits gpu(int processors) {
  cuda::GpuTraits traits = current_gpu();
  traits.processors = processors;
  return traits;
}

/// Consecutive queries of a batch. The first query of the chunk has the position `position`.
struct Chunk {
  int64_t sequence, position, count;
};

struct Sizes {
  DType keys = DType::kF16, values = keys;
  int64_t d = 64, e = 64, group = 4, kv_heads = 1, page = 32, pages = 50, width = 12, sequences = 3;
  float softcap = 0;
  int64_t window = 0, parts = 0;
  bool sinks = false, latent = false;
};

/// Attention to the pages of a pool. Neighbouring pages of a sequence are not neighbours in the pool.
struct Batch {
  Batch(const Sizes& sizes, const std::vector<Chunk>& chunks) : n(sizes), chunks(chunks) {
    Values positions, sequences, table;
    for (const Chunk& chunk : chunks) {
      for (int64_t i = 0; i < chunk.count; ++i) {
        positions.push_back(static_cast<double>(chunk.position + i));
        sequences.push_back(static_cast<double>(chunk.sequence));
      }
    }
    for (int64_t i = 0; i < n.width * n.sequences; ++i) table.push_back(static_cast<double>(page_of(i)));
    t = static_cast<int64_t>(positions.size());
    build(n.page * n.pages, n.page);
    leaves = random_leaves(graph, 7);
    leaves[position] = positions, leaves[pages] = table, leaves[owner] = sequences;
    const auto last = static_cast<int64_t>(leaves[q].size());
    for (int64_t i = 0; i < last; ++i) leaves[q][i] = query_element(i / (n.d * heads()), i % (n.d * heads()));
  }
  /// The queries from `first` on, alone. The sequence's rows are stored in order, without pages.
  Batch(const Batch& all, int64_t first, int64_t count) : n(all.n), t(count) {
    const int64_t sequence = static_cast<int64_t>(all.leaves.at(all.owner)[first]), rows = n.width * n.page;
    build(rows, 0);
    leaves = random_leaves(graph, 7);
    for (int64_t i = 0; i < count; ++i) leaves[position][i] = all.leaves.at(all.position)[first + i];
    std::copy_n(all.leaves.at(all.q).begin() + first * n.d * heads(), count * n.d * heads(), leaves[q].begin());
    for (const auto& [to, from] : {std::pair{k, all.k}, {v, all.v}}) {
      const int64_t row_size = from->shape[0] * n.kv_heads;
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t page = page_of(sequence * n.width + row / n.page);
        std::copy_n(all.leaves.at(from).begin() + (page * n.page + row % n.page) * row_size, row_size,
                    leaves[to].begin() + row * row_size);
      }
    }
    if (sinks != nullptr) leaves[sinks] = all.leaves.at(all.sinks);
  }
  /// Some queries of `all` in a batch of their own, with the same pool.
  Batch(const Batch& all, const std::vector<Chunk>& chunks, const Values& queries) : Batch(all.n, chunks) {
    for (const auto& [to, from] : {std::pair{k, all.k}, {v, all.v}, {pages, all.pages}})
      leaves[to] = all.leaves.at(from);
    if (sinks != nullptr) leaves[sinks] = all.leaves.at(all.sinks);
    leaves[q] = queries;
  }

  int64_t heads() const { return n.group * n.kv_heads; }
  int64_t page_of(int64_t entry) const { return (entry * 7 + 3) % n.pages; }
  static double query_element(int64_t query, int64_t i) {
    return static_cast<double>((query * 31 + i * 17) % 64 - 32) / 16;
  }
  void build(int64_t rows, int64_t page) {
    q = graph.input("q", DType::kF32, {n.d, heads(), t, 1});
    k = caches.add("k", n.keys, {n.d, n.kv_heads, rows, 1}, Role::kCache);
    Tensor* keys = permute(graph, k, {0, 2, 1, 3});
    v = n.latent ? k : caches.add("v", n.values, {n.e, n.kv_heads, rows, 1}, Role::kCache);
    Tensor* values = n.latent ? slice(graph, keys, {0, 0, n.e}) : permute(graph, v, {0, 2, 1, 3});
    position = graph.input("positions", DType::kI32, {t, 1, 1, 1});
    if (n.sinks) sinks = caches.add("sinks", DType::kF32, {heads(), 1, 1, 1});
    AttentionParams params{.scale = 0.2f, .softcap = n.softcap, .causal = true, .window = n.window, .page = page};
    params.parts = n.parts;
    Tensor* queries = permute(graph, q, {0, 2, 1, 3});
    if (page == 0) {
      node = graph.output(attention(graph, queries, keys, values, position, nullptr, sinks, params));
      return;
    }
    pages = graph.input("table", DType::kI32, {n.width, n.sequences, 1, 1});
    owner = graph.input("sequences", DType::kI32, {t, 1, 1, 1});
    node = graph.output(paged_attention(graph, queries, keys, values, position, sinks, pages, owner, params));
  }
  Values run(const cuda::GpuTraits& traits) {
    CudaRun cuda(graph, leaves, traits);
    cuda.run();
    EXPECT_EQ(cuda::attention::choice(*node, traits), choice);
    return cuda.values(*node);
  }
  Values run(int processors = 8) { return run(gpu(processors)); }
  /// Whether several blocks share the segments of a row.
  bool is_split(int processors) const { return cuda::kernel_for(Op::kAttention).workspace(*node, gpu(processors)) > 0; }
  void check() { EXPECT_TRUE(close_to(run(), reference_eval(graph, leaves).at(node), {1e-10})); }

  Sizes n;
  std::vector<Chunk> chunks;
  int64_t t = 0;
  Choice choice = Choice::kTiles;
  Graph graph;
  TensorContext caches;
  Tensor *q = nullptr, *k = nullptr, *v = nullptr, *position = nullptr, *pages = nullptr, *owner = nullptr,
         *sinks = nullptr, *node = nullptr;
  TensorValues leaves;
};

const std::vector<Chunk> kMixed{{1, 350, 1}, {0, 3, 1}, {2, 90, 24}, {0, 300, 10}};

/// Computes the queries of `kMixed` in many ways and compares the bits.
void check_bits(Choice choice, const Sizes& sizes) {
  Batch all(sizes, kMixed);
  SCOPED_TRACE(to_string(all.graph));
  all.choice = choice;
  all.check();
  const Values expected = all.run(1);
  EXPECT_EQ(all.run(132), expected);
  EXPECT_TRUE(all.is_split(132));
  const int64_t row = all.heads() * (sizes.e + (sizes.parts > 0 ? 1 : 0)), query = sizes.d * all.heads();
  int64_t first = 0;
  for (const Chunk& chunk : kMixed) {
    for (int64_t count = chunk.count;; count = 1) {
      const Values some(expected.begin() + first * row, expected.begin() + (first + count) * row);
      Batch alone(all, first, count);
      alone.choice = choice;
      ASSERT_EQ(alone.run(132), some) << first << ", " << count;
      if (count == chunk.count) {  // one block adds the segments without a merge
        EXPECT_FALSE(alone.is_split(1));
        ASSERT_EQ(alone.run(1), some) << first << ", " << count;
      }
      const auto from = all.leaves[all.q].begin() + first * query;
      Batch paged(all, {{chunk.sequence, chunk.position, count}}, Values(from, from + count * query));
      paged.choice = choice;
      ASSERT_EQ(paged.run(1), some) << first << ", " << count;
      if (count == 1) break;
    }
    first += chunk.count;
  }
}

TEST(CudaAttentionPages, RowsOfTilesHaveTheSameBitsInEveryBatch) {
  for (const DType keys : {DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const int64_t d : {64, 128}) check_bits(Choice::kTiles, {.keys = keys, .d = d, .e = d});
  }
  check_bits(Choice::kTiles, {.d = 256, .e = 256, .group = 5});
  check_bits(Choice::kTiles, {.keys = DType::kQ8_0, .values = DType::kF16, .e = 96, .group = 20, .sinks = true});
  check_bits(Choice::kTiles, {.values = DType::kQ8_0, .d = 96, .softcap = 1.5f, .parts = 2});
  check_bits(Choice::kTiles, {.e = 24, .group = 1, .kv_heads = 3, .window = 200});
}

TEST(CudaAttentionPages, RowsOfOtherKernelsHaveTheSameBitsInEveryBatch) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    check_bits(Choice::kLatent, {.keys = dtype, .d = 320, .e = 264, .group = 6, .latent = true});
    check_bits(Choice::kSlices, {.keys = dtype, .d = 264, .e = 296, .group = 3});
  }
  check_bits(Choice::kSlices, {.keys = DType::kQ8_0, .d = 288, .e = 288, .group = 70, .softcap = 1.5f, .sinks = true});
  check_bits(Choice::kSlices, {.keys = DType::kBF16, .values = DType::kF16, .group = 2, .window = 200, .parts = 3});
  for (const DType dtype : {DType::kF32, DType::kQ4_0}) check_bits(Choice::kRows, {.keys = dtype, .group = 3});
  check_bits(Choice::kRows, {.d = 7, .e = 5, .group = 1, .kv_heads = 2, .softcap = 1.5f, .window = 200, .sinks = true});
}

TEST(CudaAttentionPages, PagesMayHaveAnySize) {
  for (const int64_t page : {1, 3, 16, 48, 64, 200}) {
    const int64_t width = (300 + page - 1) / page;
    const Sizes sizes{.page = page, .pages = 3 * width + 1, .width = width};
    for (const auto& [keys, latent] : {std::pair{DType::kF16, false}, {DType::kF16, true}, {DType::kF32, false}}) {
      Sizes one = sizes;
      one.keys = one.values = keys, one.latent = latent, one.d = latent ? 264 : 64;
      Batch batch(one, {{2, 299, 1}, {0, 100, 20}, {1, 0, 2}});
      batch.choice = latent ? Choice::kLatent : keys == DType::kF32 ? Choice::kRows : Choice::kTiles;
      batch.check();
    }
  }
}

/// On a GPU with 84 KiB of shared memory, blocks of 64 rows do not fit.
TEST(CudaAttentionPages, BlocksOfFewRowsGiveTheSameBits) {
  for (const DType dtype : {DType::kF16, DType::kQ8_0}) {
    Batch batch({.keys = dtype, .d = 128, .e = 128, .group = 3}, kMixed);
    cuda::GpuTraits small = gpu(8);
    small.shared_bytes_per_block = 84 * 1024;
    EXPECT_EQ(batch.run(small), batch.run());
  }
}

/// Sequences need not be consecutive. Then a KV head has more row tiles than blocks.
TEST(CudaAttentionPages, InterleavedSequencesMatchReference) {
  for (const auto& [keys, d] : {std::pair<DType, int64_t>{DType::kF16, 64}, {DType::kF16, 264}, {DType::kF32, 64}}) {
    std::vector<Chunk> chunks;
    for (int64_t i = 0; i < 50; ++i) chunks.push_back({i * 7 % 3, i % 4 == 0 ? 150 + i : i, 1 + i % 3});
    Batch batch({.keys = keys, .d = d, .sequences = 3}, chunks);
    batch.choice = keys == DType::kF32 ? Choice::kRows : d == 64 ? Choice::kTiles : Choice::kSlices;
    batch.check();
  }
}

/// A page outside the pool has no rows. The emulator finds accesses outside of the pool.
TEST(CudaAttentionPages, MissingPagesAndSequencesAreHidden) {
  struct Kind {
    Choice choice;
    Sizes sizes;
  };
  const Kind kinds[] = {{Choice::kTiles, {}},
                        {Choice::kTiles, {.keys = DType::kQ8_0}},
                        {Choice::kLatent, {.d = 264, .e = 64, .latent = true}},
                        {Choice::kSlices, {.keys = DType::kQ8_0, .d = 288}},
                        {Choice::kRows, {.keys = DType::kF32, .group = 2}}};
  for (const auto& [choice, sizes] : kinds) {
    for (const int64_t count : {1, 20}) {
      Batch batch(sizes, {{0, 340, count}, {2, 200, 3}, {1, 5, 2}, {7, 5, 2}, {-1, 0, 1}});
      SCOPED_TRACE(to_string(batch.graph));
      batch.choice = choice;
      const std::pair<int64_t, double> holes[] = {{0, -1}, {5, 50}, {6, 2e9}, {10, -2e9}, {2 * 12 + 3, 51}, {12, -7}};
      for (const auto& [entry, page] : holes) batch.leaves[batch.pages][entry] = page;
      batch.check();
      for (double& page : batch.leaves[batch.pages]) page = 50;
      for (const double value : batch.run()) ASSERT_EQ(value, 0);
    }
  }
}

/// The partial results of all rows do not fit, so only short runs have partial results. A short run of 12 rows per KV
/// head has several row tiles.
TEST(CudaAttentionPages, RowTilesOfShortRunsHaveSeparatePartialResults) {
  Batch batch({.keys = DType::kF32, .e = 256, .group = 12, .kv_heads = 4, .width = 1024},
              {{0, 600, 1}, {1, 500, 18}, {2, 700, 1}});
  batch.choice = Choice::kRows;
  EXPECT_TRUE(batch.is_split(132));
  EXPECT_EQ(batch.run(132), batch.run(1));
  batch.check();
}

/// One queued launch serves every batch, because only leaves in device memory change.
TEST(CudaAttentionPages, OneLaunchServesAllSequences) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    Batch batch({.keys = dtype, .pages = 80, .width = 24}, {{0, 700, 1}, {1, 100, 20}, {2, 5, 11}});
    CudaRun cuda(batch.graph, batch.leaves);
    const auto upload = [&](Tensor* leaf, const Values& values) {
      batch.leaves[leaf] = values;
      const auto bytes = encode(DType::kI32, values);
      check_cuda(cudaMemcpy(leaf->data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    };
    for (const int64_t run : {1, 5, 32}) {
      Values sequences, positions;
      for (int64_t i = 0; i < 32; ++i) {
        sequences.push_back(static_cast<double>(i / run % 3));
        positions.push_back(static_cast<double>((run * 300 + i * 41) % 700));
      }
      upload(batch.owner, sequences), upload(batch.position, positions);
      cuda.run();
      cuda.expect(*batch.node, {1e-10});
    }
  }
}

/// Bytes of partial results for a batch of `t` tokens on a GPU with 132 multiprocessors.
int64_t workspace(int64_t t, int64_t sequences, int64_t width) {
  Sizes sizes{.d = 128, .e = 128, .kv_heads = 8, .pages = 1, .width = width, .sequences = sequences};
  Batch batch(sizes, {{0, 0, t}});
  return static_cast<int64_t>(cuda::kernel_for(Op::kAttention)
                                  .workspace(*batch.node, {.processors = 132, .shared_bytes_per_block = 227 * 1024}));
}

TEST(CudaAttentionPages, PartialResultsHaveBoundedMemory) {
  const int64_t row = 32 * (128 + 2) * 4;                  // bytes of a segment for all heads of a token
  EXPECT_EQ(workspace(1, 1, 4), 0);                        // 128 KV rows are one segment
  EXPECT_EQ(workspace(1, 1, 128), row * 32);               // 4096 KV rows
  EXPECT_EQ(workspace(16, 16, 1024), row * 16 * 80);       // 32768 KV rows
  EXPECT_EQ(workspace(512, 2, 1024), row / 4 * 80 * 201);  // 64 MiB; only short runs have partial results
}

}  // namespace
}  // namespace shoal::test
