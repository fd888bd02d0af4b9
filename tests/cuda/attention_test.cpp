// Tests of the CUDA kernels for attention, beyond the cases of PluginConformance:
//
// - all pairs of cache dtypes;
// - group sizes, prompts, caches and heads around the limits of tiles;
// - masked rows, and values at the limits of 16-bit floats;
// - positions that change between runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "devices/cuda/ops/attention.h"
#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"
#include "tests/support/environment.h"

namespace shoal::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kCacheDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0};
using cuda::attention::Choice;
constexpr cuda::GpuTraits kHopper{.compute_capability = 90, .processors = 8, .shared_bytes_per_block = 227 * 1024};

struct Sizes {
  DType keys = DType::kF16, values = keys;
  int64_t d = 64, e = 64, t = 1, s = 100, group = 4, kv_heads = 2, batches = 1;
  AttentionParams params{.scale = 0.2f, .causal = true};
  DType mask = DType::kI32;  ///< kI32 means no mask
  bool sinks = false;
  bool latent = false;  ///< whether the values are the first elements of the key rows
};

/// An attention node with its leaves. Keys are stored as [d, kv, s] and values as [e, s, kv], so rows of keys have
/// gaps.
struct Attention {
  explicit Attention(const Sizes& n) {
    const int64_t heads = n.group * n.kv_heads;
    const int64_t parts = n.params.parts;
    q = graph.input("q", DType::kF32, {n.d, heads, n.t, parts > 0 ? 1 : n.batches});
    k = weights.add("k", n.keys, {n.d, n.kv_heads, n.s, n.batches}, Role::kCache);
    Tensor* keys = permute(graph, k, {0, 2, 1, 3});
    v = n.latent ? slice(graph, keys, {0, 0, n.e})
                 : weights.add("v", n.values, {n.e, n.s, n.kv_heads, n.batches}, Role::kCache);
    if (n.params.causal || n.params.window > 0) {
      positions = graph.input("positions", DType::kI32, {n.t, parts > 0 ? n.batches : 1, 1, 1});
    }
    if (n.mask != DType::kI32) mask = graph.input("mask", n.mask, {n.s, n.t, 1, 1});
    if (n.sinks) sinks = weights.add("sinks", DType::kF32, {heads, 1, 1, 1});
    node = graph.output(attention(graph, permute(graph, q, {0, 2, 1, 3}), keys, v, positions, mask, sinks, n.params));
    leaves = random_leaves(graph, 11);
  }
  /// Sets the positions of a prompt whose last token has position `last`. If the KV rows are divided into parts, the
  /// positions of each part are one lower than in the previous part. In all parts except the first part, token 0 sees
  /// no row.
  void end_at(int64_t last) {
    if (!positions) return;
    const int64_t count = positions->shape[0];
    for (int64_t i = 0; i < positions->elements(); ++i) {
      const int64_t part = i / count, token = i % count;
      leaves[positions][i] = part > 0 && token == 0 ? -1 : static_cast<double>(last - part - (count - 1 - token));
    }
  }
  Values run() {
    CudaRun cuda(graph, leaves);
    cuda.run();
    return cuda.values(*node);
  }
  void check(double bound = 1e-10) {
    SCOPED_TRACE(to_string(graph));
    const Values values = run();
    EXPECT_TRUE(close_to(values, reference_eval(graph, leaves).at(node), {bound}));
  }
  /// Changes the keys so that the scores grow from each tile to the next tile.
  void grow(DType rounded_to) {
    Values& keys = leaves[k];
    const auto tile = static_cast<size_t>(k->shape[0] * k->shape[1] * 64);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] *= static_cast<double>(1 + i / tile) / 2;
    keys = rounded(rounded_to, keys);
  }
  Choice choice() const { return cuda::attention::choice(*node, kHopper); }

  Graph graph;
  TensorContext weights;
  Tensor *q = nullptr, *k = nullptr, *v = nullptr, *positions = nullptr, *mask = nullptr, *sinks = nullptr;
  Tensor* node = nullptr;
  TensorValues leaves;
};

void check(const Sizes& sizes) {
  Attention attention(sizes);
  attention.end_at(sizes.s - 1);
  attention.check();
}

TEST(CudaAttention, MatchesReferenceForAnyGroupAndPromptLength) {
  for (const DType dtype : {DType::kF16, DType::kQ8_0}) {
    for (const int64_t group : {1, 3, 4, 8}) {
      for (const int64_t t : {1, 2, 7, 8, 9, 64, 100}) {
        check({.keys = dtype, .t = t, .s = t + 70, .group = group, .kv_heads = 1});
      }
    }
  }
  check({.t = 3, .s = 40, .group = 70, .kv_heads = 1});
  check({.keys = DType::kF32, .t = 3, .s = 40, .group = 70, .kv_heads = 1});
}

TEST(CudaAttention, MatchesReferenceForAnyCacheLength) {
  for (const DType dtype : kCacheDTypes) {
    for (const int64_t s : {1, 17, 64, 65, 300, 1000}) {
      check({.keys = dtype, .s = s, .kv_heads = 2, .batches = s < 100 ? 3 : 1});
      check({.keys = dtype, .t = 8, .s = std::max<int64_t>(s, 8), .kv_heads = 2});
    }
  }
}

TEST(CudaAttention, MatchesReferenceForAnyHeadSize) {
  for (const int64_t d : {1, 8, 33, 40, 72, 80, 96, 192, 256, 264, 300}) {
    for (const int64_t t : {1, 20}) {
      check({.d = d, .e = d, .t = t, .s = 90, .kv_heads = 2});
      check({.keys = DType::kBF16, .d = d, .e = 48, .t = t, .s = 90, .kv_heads = 1});
      if (d % 32 != 0) continue;
      check({.keys = DType::kQ8_0, .d = d, .e = d, .t = t, .s = 90, .kv_heads = 3});
      check({.keys = DType::kQ8_0, .d = d, .e = 128, .t = t, .s = 90, .kv_heads = 1});
    }
  }
  check({.d = 192, .e = 128, .t = 70, .s = 70, .group = 1, .kv_heads = 1});
  check({.keys = DType::kF32, .d = 5000, .e = 3000, .t = 2, .s = 3, .group = 2, .kv_heads = 1});
}

const AttentionParams kParameters[] = {
    {.scale = 0.2f},
    {.scale = 0.2f, .causal = true, .window = 30},
    {.scale = 0.2f, .window = 100},
    {.scale = 1.5f, .softcap = 2.0f, .causal = true},
    {.scale = -0.3f, .softcap = 1.0f, .causal = true, .window = 65},
};

TEST(CudaAttention, MatchesReferenceForAllParameters) {
  for (const DType dtype : kCacheDTypes) {
    for (const AttentionParams& params : kParameters) {
      for (const DType mask : {DType::kI32, DType::kF32, DType::kF16}) {
        for (const int64_t t : {2, 17}) {
          check({.keys = dtype,
                 .t = t,
                 .s = 150,
                 .kv_heads = 1,
                 .params = params,
                 .mask = mask,
                 .sinks = mask != DType::kF16});
        }
      }
    }
  }
}

/// After `change`, a result must be NaN if odd(attention, query, head) is true. All other results must stay the same.
/// The cache dtypes cover the kernels kTiles and kRows. The sizes cover one split and several splits.
template <class Change, class Odd>
void check_odd(const Change& change, const Odd& odd) {
  for (const DType dtype : kCacheDTypes) {
    for (const int64_t t : {1, 3, 30}) {
      for (const int64_t s : {60, 400}) {
        SCOPED_TRACE(fmt::format("{} t {} s {}", name_of(dtype), t, s));
        Attention attention({.keys = dtype, .t = t, .s = s, .group = 2, .kv_heads = 1});
        attention.end_at(s - 1);
        const Values clean = attention.run();
        change(attention);
        const Values values = attention.run();
        for (int64_t i = 0; i < std::ssize(values); ++i) {
          const bool is_odd = odd(attention, i / 128, i / 64 % 2);
          ASSERT_TRUE(is_odd ? std::isnan(values[i]) : values[i] == clean[i])
              << "query " << i / 128 << " head " << i / 64 % 2 << " column " << i % 64 << ": " << values[i];
        }
      }
    }
  }
}

TEST(CudaAttention, NaNAndInfinityInAQueryReachOnlyItsResult) {
  const std::pair<double, int64_t> all[] = {{kNaN, 0}, {-kNaN, 37}, {kInfinity, 63}, {-kInfinity, 8}};
  for (const auto& [value, at] : all) {
    SCOPED_TRACE(fmt::format("{} at {}", value, at));
    const auto query = [](const Attention& a) { return a.q->shape[2] / 2; };
    check_odd([&, odd = value, i = at](Attention& a) { a.leaves[a.q][(query(a) * 2 + 1) * 64 + i] = odd; },
              [&](const Attention& a, int64_t q, int64_t head) { return q == query(a) && head == 1; });
  }
}

TEST(CudaAttention, NaNInAKeyReachesOnlyQueriesThatSeeIt) {
  for (const int64_t back : {1, 2, 20}) {  // distance of the NaN from the end of the cache, in rows
    SCOPED_TRACE(back);
    check_odd([&](Attention& a) { a.leaves[a.k][(a.k->shape[2] - back) * 64 + 40] = kNaN; },
              [&](const Attention& a, int64_t q, int64_t) { return a.q->shape[2] - q <= back; });
  }
  check_odd([](Attention& a) { std::fill(a.leaves[a.k].begin(), a.leaves[a.k].end(), kNaN); },
            [](const Attention&, int64_t, int64_t) { return true; });
}

TEST(CudaAttention, ResultsAreZeroForQueriesThatSeeNoKey) {
  for (const DType dtype : kCacheDTypes) {
    for (const int64_t t : {1, 3, 30}) {
      SCOPED_TRACE(fmt::format("{} t {}", name_of(dtype), t));
      const Sizes sizes{.keys = dtype, .t = t, .s = 200, .kv_heads = 1, .sinks = true};
      Attention attention(sizes);
      for (double& position : attention.leaves[attention.positions]) position = -1;
      EXPECT_EQ(attention.run(), Values(attention.node->elements(), 0));
      attention.end_at(t / 2 - 1);  // half of the queries see keys
      attention.check();
    }
  }
  check({.s = 0});
}

TEST(CudaAttention, MatchesReferenceAtLimitsOf16BitFloats) {
  struct Magnitudes {
    double q, kv;
    float scale;
  };
  const Magnitudes all[] = {
      {1e6, 1, 2e-7f}, {1e30, 1, 2e-31f}, {1e-30, 1, 2e29f}, {1e-3, 6e4, 0.003f}, {1, 1e-4, 2e3f}};
  for (const DType dtype : kCacheDTypes) {
    for (const Magnitudes& m : all) {
      for (const int64_t t : {1, 10}) {
        Attention attention({.keys = dtype, .t = t, .kv_heads = 1, .params = {.scale = m.scale}});
        for (double& x : attention.leaves[attention.q]) x = static_cast<float>(x * m.q);
        for (Tensor* cache : {attention.k, attention.v}) {
          Values& values = attention.leaves[cache];
          for (double& x : values) x *= m.kv;
          values = rounded(DType::kF16, values);
          if (dtype == DType::kBF16) values = rounded(dtype, values);
        }
        attention.check();
      }
    }
  }
}

TEST(CudaAttention, LargeScoresDoNotOverflow) {
  for (const DType dtype : kCacheDTypes) {
    Attention attention({.keys = dtype, .s = 700, .group = 2, .kv_heads = 1, .params = {.scale = 100}});
    attention.check(1e-8);  // f32 scores of several hundred have rounding errors of this size
  }
}

TEST(CudaAttention, MatchesReferenceForUnalignedCaches) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    Graph graph;
    TensorContext weights;
    Tensor* q = slice(graph, graph.input("q", DType::kF32, {65, 5, 4, 1}), {0, 1, 64});
    Tensor* k = slice(graph, weights.add("k", dtype, {72, 90, 2, 1}), {0, 3, 64});
    Tensor* v = permute(graph, weights.add("v", dtype, {90, 64, 2, 1}), {1, 0, 2, 3});
    Tensor* node = graph.output(attention(graph, q, k, v, nullptr, nullptr, nullptr, {.scale = 0.2f}));
    TensorValues leaves = random_leaves(graph, 3);
    CudaRun cuda(graph, leaves);
    cuda.run();
    cuda.expect(*node, {1e-10});
  }
}

// Each tile has larger scores than the previous tile. With nine KV heads, the kernel uses one split. With fewer heads,
// each tile is one split.
TEST(CudaAttention, LaterTilesMayOutweighEarlierTiles) {
  for (const DType dtype : kCacheDTypes) {
    for (const int64_t kv_heads : {1, 3, 9}) {
      const bool one_split = kv_heads == 9;
      for (const int64_t t : {1, 17}) {
        SCOPED_TRACE(fmt::format("{} kv heads {} t {}", name_of(dtype), kv_heads, t));
        const Sizes sizes{
            .keys = dtype, .t = t, .s = one_split ? 300 : 450, .group = one_split ? 1 : 4, .kv_heads = kv_heads};
        Attention attention(sizes);
        attention.end_at(sizes.s - 1);
        attention.grow(DType::kBF16);
        attention.check();
      }
    }
  }
}

// One queued launch serves every step, because only the positions in device memory change. The bits of the results do
// not depend on the order in which blocks finish.
TEST(CudaAttention, OneLaunchServesAllPositionsInAnyBlockOrder) {
  for (const DType dtype : kCacheDTypes) {
    for (const auto& [t, e] :
         {std::pair<int64_t, int64_t>{1, 64}, {2, 64}, {20, 64}, {1, 1}, {20, 1}, {1, 200}, {20, 200}}) {
      if (e % traits(dtype).block_elems != 0) continue;
      Attention attention({.keys = dtype, .e = e, .t = t, .s = 600, .kv_heads = 2, .sinks = true});
      CudaRun cuda(attention.graph, attention.leaves);
      for (const int64_t last : {t < 20 ? 3 : 25, 599, 64, 200}) {
        attention.end_at(last);
        const auto bytes = encode(DType::kI32, attention.leaves[attention.positions]);
        check_cuda(cudaMemcpy(attention.positions->data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
        cuda.run();
        const Values first = cuda.values(*attention.node);
        cuda.expect(*attention.node, {1e-10});
        const Environment order("SHOAL_EMULATED_BLOCKS", "reverse");
        cuda.run();
        EXPECT_EQ(cuda.values(*attention.node), first) << name_of(dtype) << " t " << t << " e " << e;
      }
    }
  }
}

/// Returns the number of segments whose partial results a decoding step stores on a GPU with 132 multiprocessors.
int64_t stored_segments(int64_t kv_heads, int64_t keys) {
  Attention attention({.d = 128, .e = 128, .s = keys, .kv_heads = kv_heads});
  const size_t bytes = cuda::kernel_for(Op::kAttention).workspace(*attention.node, {.processors = 132});
  const auto each = static_cast<size_t>(attention.node->rows() * (128 + 2)) * sizeof(float);
  EXPECT_EQ(bytes % each, 0u);
  return static_cast<int64_t>(bytes / each);
}

TEST(CudaAttention, ShortContextsAreAlsoSplit) {
  const std::array<int64_t, 3> all[] = {{8, 64, 0},   {8, 128, 0},   {8, 129, 2},    {8, 255, 2},
                                        {8, 1000, 8}, {8, 4097, 33}, {1, 10000, 52}, {132, 1000, 0}};
  for (const auto& [kv_heads, keys, expected] : all) EXPECT_EQ(stored_segments(kv_heads, keys), expected) << keys;
}

TEST(CudaAttention, SegmentsHaveFixedBoundaries) {
  using cuda::attention::first_tile_of, cuda::attention::segment_of;
  for (int tile = 0, segment = 0; tile < 10000; ++tile) {
    if (tile == first_tile_of(segment + 1)) ++segment;
    ASSERT_EQ(segment_of(tile), segment) << tile;
    ASSERT_LE(first_tile_of(segment), tile);
    ASSERT_LE(first_tile_of(segment + 1) - first_tile_of(segment), std::max(2, tile / 16)) << tile;
  }
  EXPECT_EQ(first_tile_of(32), 64);
  EXPECT_EQ(segment_of(32768 / 64 - 1), 79);
}

TEST(CudaAttention, TilesHandleBF16ValuesOfAnyMagnitude) {
  for (const int64_t t : {1, 20}) {
    Attention attention({.keys = DType::kBF16, .t = t, .kv_heads = 1});
    EXPECT_EQ(attention.choice(), Choice::kTiles);
    for (double& x : attention.leaves[attention.v]) x *= 0x1p120;
    attention.end_at(99);
    attention.check();
  }
}

/// The first key has nearly all of the weight, but its value is zero. The result is a sum of the other values, each
/// with a weight of 4e-5. In f16, these weights would have only ten significant bits.
TEST(CudaAttention, SmallWeightsOfF16ValuesAreNotLost) {
  for (const auto& [keys, choice] : {std::pair{DType::kF16, Choice::kTiles}, {DType::kBF16, Choice::kSlices}}) {
    Attention attention({.keys = keys, .values = DType::kF16, .t = 20, .kv_heads = 1});
    EXPECT_EQ(attention.choice(), choice);
    Values &q = attention.leaves[attention.q], &k = attention.leaves[attention.k], &v = attention.leaves[attention.v];
    for (size_t i = 0; i < q.size(); ++i) q[i] = i % 64 == 0 ? 1 : q[i] / 16;
    for (size_t i = 0; i < k.size(); i += 64) k[i] = i == 0 ? 50 : 0;
    std::fill_n(v.begin(), 64, 0);
    attention.end_at(99);
    attention.check();
  }
}

/// Checks which kernel is chosen, and checks the results of this kernel.
void check_choice(Choice choice, const Sizes& sizes) {
  Attention attention(sizes);
  attention.end_at(sizes.s - 1);
  EXPECT_EQ(attention.choice(), choice);
  attention.check();
}
/// Returns kRows if the cache contains f32, because kSlices does not support f32. Otherwise returns kSlices.
Choice choice_for(DType keys, DType values) {
  return keys == DType::kF32 || values == DType::kF32 ? Choice::kRows : Choice::kSlices;
}
void check_slices(const Sizes& sizes) {
  check_choice(choice_for(sizes.keys, sizes.values), sizes);
}

TEST(CudaAttention, MatchesReferenceForAllPairsOfCacheDTypes) {
  for (const DType keys : kCacheDTypes) {
    for (const DType values : kCacheDTypes) {
      for (const int64_t t : {1, 9}) {
        for (const int64_t columns : {64, 128, 256}) {
          check({.keys = keys, .values = values, .d = columns, .e = columns, .t = t, .s = 150, .kv_heads = 1});
        }
      }
      for (const int64_t e : {256, 512}) {
        check_slices({.keys = keys, .values = values, .d = 576, .e = e, .t = 20, .s = 200, .kv_heads = 1});
      }
      if (keys == values || (keys != DType::kBF16 && values != DType::kBF16)) continue;
      check_slices({.keys = keys, .values = values, .d = 96, .e = 64, .t = 70, .s = 150, .group = 1, .kv_heads = 2});
    }
  }
}

// If values have more than 288 columns, the kernel divides the columns into groups. Each group has its own blocks,
// partial results and merges.
TEST(CudaAttention, HandlesValuesWiderThan288Columns) {
  const DType f16 = DType::kF16, bf16 = DType::kBF16, q8 = DType::kQ8_0;
  check_slices({.keys = bf16, .values = f16, .d = 40, .e = 72, .t = 33, .s = 700, .sinks = true});
  check_slices({.keys = f16, .d = 512, .e = 512, .t = 7, .s = 700, .kv_heads = 2, .sinks = true});
  check_slices({.keys = q8, .d = 576, .e = 576, .t = 33, .s = 300, .group = 1, .kv_heads = 2});
  check_slices({.keys = f16, .values = bf16, .d = 320, .e = 296, .t = 20, .s = 100, .group = 1, .mask = f16});
  const AttentionParams params{.scale = 0.05f, .softcap = 30, .causal = true, .window = 70};
  check_slices({.keys = q8, .values = f16, .d = 576, .e = 512, .t = 40, .s = 400, .kv_heads = 1, .params = params});
}

// Returns the sizes of latent attention. The values are stored in the key rows.
Sizes latent(DType dtype, int64_t heads, int64_t t, int64_t s) {
  return {.keys = dtype,
          .d = 576,
          .e = 512,
          .t = t,
          .s = s,
          .group = heads,
          .kv_heads = 1,
          .params = {.scale = 0.05f, .causal = true},
          .latent = true};
}

TEST(CudaAttention, LatentAttentionMatchesReferenceForAnyDTypeAndHeadCount) {
  for (const DType dtype : kCacheDTypes) {
    const bool is_16_bit = dtype == DType::kF16 || dtype == DType::kBF16;
    const auto check_latent = [&](const Sizes& sizes) {
      is_16_bit ? check_choice(Choice::kLatent, sizes) : check_slices(sizes);
    };
    for (const int64_t s : {1, 64, 130, 700}) check_latent(latent(dtype, 16, 1, s));
    check_latent(latent(dtype, 5, 1, 200));
    check_latent(latent(dtype, 20, 2, 200));
    check_latent(latent(dtype, 3, 9, 100));
    check_latent(latent(dtype, 128, 1, 200));
    check_latent(latent(dtype, 16, 20, 100));
  }
}

TEST(CudaAttention, LatentAttentionMatchesReferenceForAnyKeyAndValueSize) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const auto& [d, e] : {std::pair<int64_t, int64_t>{264, 8}, {320, 256}, {328, 328}, {576, 504}, {512, 512}}) {
      Sizes sizes = latent(dtype, 12, 1, 300);
      sizes.d = d, sizes.e = e, sizes.kv_heads = 2, sizes.batches = 2;
      check_choice(Choice::kLatent, sizes);
    }
    check_slices({.keys = dtype, .d = 576, .e = 520, .group = 12, .latent = true});
    check_slices({.keys = dtype, .d = 576, .e = 512, .group = 12});
  }
}

TEST(CudaAttention, LatentAttentionMatchesReferenceForAllParameters) {
  for (AttentionParams params : kParameters) {
    params.scale /= 4;
    for (const DType mask : {DType::kI32, DType::kF32, DType::kF16}) {
      Sizes sizes = latent(DType::kF16, 9, 3, 250);
      sizes.params = params, sizes.mask = mask, sizes.sinks = mask != DType::kF16;
      check_choice(Choice::kLatent, sizes);
    }
  }
}

TEST(CudaAttention, PartialResultsEndWithLogSumExp) {
  const auto check_parts = [](Choice choice, Sizes sizes) {
    sizes.batches = 3;
    sizes.params.parts = 5;
    for (const bool sinks : {false, true}) {
      sizes.sinks = sinks;
      check_choice(choice, sizes);
    }
  };
  for (const int64_t t : {1, 4}) {
    for (const int64_t s : {40, 300}) {
      check_parts(Choice::kTiles, {.t = t, .s = s});
      check_parts(Choice::kTiles, {.keys = DType::kQ8_0, .t = t, .s = s, .group = 20});
      check_parts(Choice::kLatent, latent(DType::kF16, 12, t, s));
      check_parts(Choice::kSlices, {.keys = DType::kBF16, .d = 576, .e = 512, .t = t, .s = s});
      check_parts(Choice::kSlices, latent(DType::kQ8_0, 20, t, s));
      check_parts(Choice::kRows, {.keys = DType::kF32, .t = t, .s = s, .group = 2});
    }
  }
}

/// Each query sees one of two windows of 20 keys, and a mask hides key 25. Rows that no query sees are NaN.
void check_unseen_rows(const Sizes& sizes) {
  Attention attention(sizes);
  SCOPED_TRACE(to_string(attention.graph));
  Values& positions = attention.leaves[attention.positions];
  for (int64_t i = 0; i < sizes.t; ++i) positions[i] = i % 2 ? 30 : 270;
  std::vector<int64_t> rows{0, 5, 31, 64, 100, 250, 271};
  if (attention.mask) {
    rows.push_back(25);
    for (int64_t i = 0; i < sizes.t; ++i) attention.leaves[attention.mask][i * sizes.s + 25] = -kInfinity;
  }
  const auto fill = [&](double value) {
    for (const int64_t row : rows) {
      std::fill_n(attention.leaves[attention.k].begin() + row * sizes.d, sizes.d, value);
      if (!sizes.latent) std::fill_n(attention.leaves[attention.v].begin() + row * sizes.e, sizes.e, value);
    }
  };
  fill(sizes.keys == DType::kQ8_0 ? 1e30 : kNaN);  // the scale of a q8_0 block becomes infinite
  const Values values = attention.run();
  fill(0);
  EXPECT_TRUE(close_to(values, reference_eval(attention.graph, attention.leaves).at(attention.node), {1e-10}));
}

TEST(CudaAttention, UnseenAndMaskedRowsDoNotChangeResults) {
  std::vector<Sizes> all{latent(DType::kF16, 12, 2, 300), latent(DType::kBF16, 12, 2, 300)};
  for (const DType dtype : kCacheDTypes) {
    for (const int64_t t : {2, 20}) {
      all.push_back({.keys = dtype, .t = t, .s = 300, .group = 2, .kv_heads = 1});
    }
  }
  for (Sizes& sizes : all) {
    sizes.params.window = 20;
    check_unseen_rows(sizes);
    sizes.mask = DType::kF32;
    check_unseen_rows(sizes);
  }
}

TEST(CudaAttention, LatentAttentionHandlesGrowingScoresAndNaN) {
  for (const int64_t s : {400, 60}) {  // 400 rows use several splits, and 60 rows use one split
    Attention attention(latent(DType::kF16, 16, 1, s));
    attention.end_at(s - 1);
    attention.grow(DType::kF16);
    attention.check();
    for (const bool all : {false, true}) {
      Values& keys = attention.leaves[attention.k];
      std::fill(keys.end() - 576 * (all ? s : 1), keys.end(), kNaN);
      for (const double value : attention.run()) ASSERT_TRUE(std::isnan(value));
    }
  }
}

}  // namespace
}  // namespace shoal::test
