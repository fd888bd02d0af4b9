// Tests of the CUDA kernels for element-wise ops, data movement and row lookups. The tests use the memory layouts for
// which these kernels have special code. Conversions must match the host bit for bit. PluginConformance has the other
// cases.
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"
#include "tests/support/encoders.h"
#include "tests/support/environment.h"

namespace shoal::test {
namespace {

void check(Op op, const std::string& name, const Build& build, Tolerance tolerance = {1e-11}) {
  check_case({op, name, build, tolerance}, 7);
}

TEST(CudaElementwise, BroadcastRowsAndColumnsMatchReference) {
  const std::pair<Shape, Shape> all[] = {
      {{128, 5, 2, 2}, {128, 1, 1, 1}}, {{128, 5, 2, 2}, {1, 5, 2, 2}}, {{128, 5, 2, 2}, {128, 5, 1, 1}},
      {{128, 5, 2, 2}, {1, 1, 1, 1}},   {{1, 5, 2, 1}, {64, 5, 2, 1}},  {{2048, 40, 1, 1}, {2048, 1, 1, 1}},
      {{4100, 3, 1, 1}, {1, 3, 1, 1}},  {{16, 1, 9, 1}, {16, 7, 1, 3}},
  };
  for (const auto& [a, b] : all) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
      const double bound = dtype == DType::kF16 ? 1e-6 : dtype == DType::kBF16 ? 1e-4 : 1e-11;
      const auto build = [&, x = a, y = b](Graph& g, TensorContext&) {
        return sub(g, g.input("a", dtype, x), g.input("b", dtype, y));
      };
      check(Op::kSub, to_string(a) + to_string(b), build, {bound});
    }
  }
}

TEST(CudaElementwise, SlicedRowsMatchReference) {
  check(Op::kScale, "slice", [](Graph& g, TensorContext&) {
    return scale(g, slice(g, g.input("x", DType::kF32, {96, 6, 3, 1}), {0, 32, 64}), {2.0f, 1.0f});
  });
  check(Op::kGlu, "slice", [](Graph& g, TensorContext&) {
    Tensor* x = g.input("x", DType::kF32, {256, 33, 3, 1});
    return glu(g, slice(g, x, {0, 0, 128}), slice(g, x, {0, 128, 128}), GluKind::kSwiglu);
  });
}

TEST(CudaCopy, CopiesTransposedTensorsOfManyTiles) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI64}) {
    check(Op::kContiguous, std::string(name_of(dtype)), [=](Graph& g, TensorContext&) {
      return contiguous(g, permute(g, g.input("ids", dtype, {45, 70, 3, 2}), {1, 0, 3, 2}));
    });
    check(Op::kContiguous, std::string(name_of(dtype)) + " gaps everywhere", [=](Graph& g, TensorContext&) {
      return contiguous(g, permute(g, g.input("ids", dtype, {5, 6, 7, 8}), {3, 1, 0, 2}));
    });
  }
}

// --- conversions ---

/// Returns difficult inputs for quantisers: outliers, blocks of equal values, blocks with values of one sign, zeros of
/// both signs, and subnormals.
std::vector<float> hard_values(int64_t count) {
  std::mt19937_64 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const float x = normal(rng);
    const float kinds[] = {x,
                           i % 32 == 5 ? 100 * x : x,
                           std::fabs(x),
                           -std::fabs(x) - 1,
                           i % 2 ? 0.0f : -0.0f,
                           0.37f,
                           -2.5f,
                           x * 1e-41f,
                           x * 1e4f,
                           static_cast<float>(static_cast<int>(x * 4)),
                           i / 32 % 2 ? x : 0.0f};
    values[i] = kinds[i / 256 % std::ssize(kinds)];
  }
  return values;
}

std::vector<std::byte> converted(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(bytes_for(dtype, static_cast<int64_t>(values.size())));
  from_f32(dtype, values.data(), bytes.data(), static_cast<int64_t>(values.size()));
  return bytes;
}
std::vector<float> as_floats(DType dtype, const std::vector<std::byte>& bytes, int64_t count) {
  std::vector<float> values(count);
  traits(dtype).to_f32(bytes.data(), values.data(), count);
  return values;
}

/// Runs the graph on leaves with the given bytes and returns the stored bytes of `node`.
std::vector<std::byte> run_bytes(Graph& graph, Tensor* node, const std::vector<std::byte>& leaf_bytes) {
  graph.output(node);
  TensorValues leaves;
  for (Tensor* leaf : graph.leaves()) leaves[leaf] = decode(leaf->dtype, leaf_bytes, leaf->elements());
  CudaRun run(graph, leaves);
  std::memcpy(graph.leaves()[0]->data, leaf_bytes.data(), leaf_bytes.size());
  run.run();
  return run.bytes(*node);
}

int64_t differing_block(DType dtype, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  const size_t size = traits(dtype).block_bytes;
  for (size_t i = 0; i < a.size(); i += size) {
    if (std::memcmp(a.data() + i, b.data() + i, size) != 0) return static_cast<int64_t>(i / size);
  }
  return -1;
}

void check_conversion(DType from, DType to, const Shape& shape, const std::vector<float>& values) {
  SCOPED_TRACE(std::string(name_of(from)) + " to " + std::string(name_of(to)));
  const std::vector<std::byte> stored = converted(from, values);
  const std::vector<std::byte> expected = converted(to, as_floats(from, stored, static_cast<int64_t>(values.size())));
  Graph graph;
  Tensor* x = graph.input("x", from, shape);
  const std::vector<std::byte> got = run_bytes(graph, cast(graph, x, to), stored);
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(differing_block(to, got, expected), -1);
}

TEST(CudaCast, CastsEveryDTypeToUnquantisedDTypesBitForBit) {
  const std::vector<float> values = hard_values(256 * 12);
  const DType plain[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI32, DType::kI64};
  const auto is_integer = [](DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64; };
  for (int from = 0; from < kDTypeCount; ++from) {
    for (const DType to : plain) {
      const auto a = static_cast<DType>(from);
      if (a == to || (is_integer(a) && is_integer(to))) continue;
      check_conversion(a, to, {1024, 3, 1, 1}, values);
    }
  }
}

TEST(CudaCast, CastsSpecialValuesBitForBit) {
  const float inf = INFINITY;
  const std::vector<float> values = {
      0.0f,      -0.0f,       inf,      -inf,    1.5f,   2.5f,       -0.5f,  65504.0f,    65519.9f, 65520,   -1e10f,
      3e38f,     5e-8f,       2.98e-8f, 6.1e-5f, 1e-40f, 2147483520, 2.2e9f, -2.2e9f,     9.3e18f,  9.2e18f, -9.3e18f,
      0.333333f, 1.00390625f, -3.5f,    0.49f,   1e-3f,  123.456f,   -7,     16777216.0f, 0.1f,     -65520};
  for (const DType to : {DType::kF16, DType::kBF16, DType::kI32, DType::kI64}) {
    check_conversion(DType::kF32, to, {32, 1, 1, 1}, values);
    check_conversion(DType::kF32, to, {31, 1, 1, 1}, {values.begin(), values.end() - 1});
  }
}

TEST(CudaCast, CastsNaNToNaNOrZero) {
  for (const DType to : {DType::kF16, DType::kBF16, DType::kI32, DType::kI64}) {
    Graph graph;
    Tensor* x = graph.input("x", DType::kF32, {9, 1, 1, 1});
    const auto bytes = run_bytes(graph, cast(graph, x, to), converted(DType::kF32, std::vector<float>(9, NAN)));
    for (const float value : as_floats(to, bytes, 9)) {
      EXPECT_TRUE(traits(to).is_float ? std::isnan(value) : value == 0) << name_of(to) << " " << value;
    }
  }
}

/// Returns the values of q8_0 blocks. Each block with one special value is followed by a block with ordinary values.
/// The position of the special value in the block varies. The last two blocks contain only infinities and NaNs.
std::vector<float> blocks_with_odd_values() {
  std::vector<float> values;
  for (const float odd : {NAN, -NAN, std::bit_cast<float>(0x7f801000u), INFINITY, -INFINITY, 3e38f}) {
    for (const int at : {0, 1, 13, 16, 31}) {
      for (int i = 0; i < 64; ++i) values.push_back(i == at ? odd : 0.25f * static_cast<float>(i % 7 - 3));
    }
  }
  for (int i = 0; i < 64; ++i) values.push_back(i % 3 ? INFINITY : i % 2 ? NAN : -NAN);
  return values;
}

// --- rows by ids ---

TEST(CudaRows, HandlesMoreRangesThanOneLaunchTakes) {
  for (const int count : {32, 33, 100}) {
    SelectParams params;
    int64_t rows = 0;
    for (int i = 0; i < count; ++i) rows += params.ranges.emplace_back(IndexRange{1000 - 7 * i, 1 + i % 2}).length;
    check(Op::kGetRows, "get_rows", [=](Graph& g, TensorContext& w) {
      return get_rows(g, w.add("table", DType::kQ8_0, {64, rows, 1, 1}), g.input("ids", DType::kI32, {90, 1, 1, 1}),
                      params);
    });
    check(Op::kSetRows, "set_rows", [=](Graph& g, TensorContext& w) {
      return set_rows(g, w.add("cache", DType::kF16, {64, rows, 2, 1}, Role::kCache),
                      g.input("x", DType::kF32, {64, 40, 2, 1}), g.input("ids", DType::kI64, {40, 1, 1, 1}), params);
    });
  }
}

TEST(CudaRows, HandlesRowsOfOddLengthsAndStrides) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    check(Op::kSetRows, "odd",
          [=](Graph& g, TensorContext& w) {
            Tensor* rows = transpose(g, g.input("x", DType::kF32, {6, 37, 3, 1}));
            return set_rows(g, w.add("cache", dtype, {37, 9, 3, 1}, Role::kCache), rows,
                            g.input("ids", DType::kI32, {6, 1, 1, 1}));
          },
          {1e-5});
    check(Op::kGetRows, "odd", [=](Graph& g, TensorContext&) {
      return get_rows(g, g.input("table", dtype, {37, 9, 1, 1}), g.input("ids", DType::kI32, {6, 1, 1, 1}));
    });
  }
}

/// Writes rows of 64 values into a cache of type `dtype`. Compares the bytes of the cache with the bytes that the host
/// computes.
void check_cache(DType dtype, const std::vector<float>& values) {
  SCOPED_TRACE(name_of(dtype));
  const auto rows = static_cast<int64_t>(values.size()) / 64;
  Graph graph;
  TensorContext weights;
  Tensor* cache = weights.add("cache", dtype, {64, rows, 1, 1}, Role::kCache);
  Tensor* x = graph.input("x", DType::kF32, {64, rows, 1, 1});
  Tensor* ids = graph.input("ids", DType::kI32, {rows, 1, 1, 1});
  graph.output(set_rows(graph, cache, x, ids));
  TensorValues leaves{{cache, Values(values.size(), 1)}, {x, Values(values.size(), 0)}, {ids, {}}};
  for (int64_t i = 0; i < rows; ++i) leaves[ids].push_back(static_cast<double>(i));
  CudaRun run(graph, leaves);
  check_cuda(cudaMemcpy(x->data, values.data(), x->bytes(), cudaMemcpyHostToDevice));  // this copy keeps all NaN bits
  run.run();
  EXPECT_EQ(differing_block(dtype, run.bytes(*cache), converted(dtype, values)), -1);
}

TEST(CudaRows, WritesBlockCachesBitForBitLikeTheHost) {
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL}) {
    check_cache(dtype, hard_values(256 * 12));
  }
  check_cache(DType::kQ8_0, blocks_with_odd_values());
}

TEST(CudaRows, LastRowWinsForEqualIds) {
  // On the emulator, blocks run in reverse order, so the rows that must be written last are processed first.
  const Environment reverse("SHOAL_EMULATED_BLOCKS", "reverse");
  for (const DType dtype : {DType::kF32, DType::kQ8_0}) {
    Graph graph;
    TensorContext persistent;
    Tensor* cache = persistent.add("cache", dtype, {64, 4, 1, 1}, Role::kCache);
    Tensor* rows = graph.input("x", DType::kF32, {64, 300, 1, 1});
    Tensor* ids = graph.input("ids", DType::kI32, {300, 1, 1, 1});
    graph.output(set_rows(graph, cache, rows, ids));
    TensorValues leaves{{cache, Values(256, 0.0)}};
    for (int i = 0; i < 300 * 64; ++i) leaves[rows].push_back(i / 64);
    for (int i = 0; i < 300; ++i) leaves[ids].push_back(i % 3 == 2 ? -1 : i % 3);
    CudaRun run(graph, leaves);
    run.run();
    const Values values = run.values(*cache);
    EXPECT_NEAR(values[0], 297, 1);
    EXPECT_NEAR(values[64], 298, 1);
    EXPECT_EQ(values[128], 0);
  }
}

}  // namespace
}  // namespace shoal::test
