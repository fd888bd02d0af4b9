// Tests of kernels along rows, in addition to the cases of tests/ops/op_cases.h. The tests cover rows that one block
// cannot hold, many equal values, NaN and infinities, results that overwrite their source, and rms_norm fused with its
// neighbours. Indices must equal the indices that the CPU device computes. Other results are compared with float64.
#include <cmath>
#include <limits>
#include <random>

#include "devices/cuda/ops/fused.h"
#include "devices/device.h"
#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"

namespace shoal::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Result { kApart, kInPlace };

/// Runs the node and returns its values. With kInPlace, the node overwrites its first source.
Values run_node(Graph& graph, Tensor& node, TensorValues leaves, Result where = Result::kApart) {
  CudaRun cuda(graph, leaves);
  if (where == Result::kInPlace) node.data = node.src[0]->data;
  cuda.run();
  return cuda.values(node);
}

using Make = std::function<Tensor*(Graph&, Tensor*)>;

/// A node that reads input x. The values of x are rounded to the dtype of x.
struct Case {
  Graph graph;
  Tensor* x;
  Tensor* node;
  TensorValues leaves;

  Case(DType dtype, const Shape& shape, const Values& values, const Make& build)
      : x(graph.input("x", dtype, shape)), node(graph.output(build(graph, x))) {
    leaves[x] = rounded(dtype, values);
  }
};

/// Checks that GPU and CPU give equal results. The emulated GPU has 8 multiprocessors. If a tensor has 17 long rows,
/// one block processes each row. If a tensor has fewer long rows, several blocks process each row.
void expect_same_as_cpu(Case& one) {
  const auto cpu = Registry::instance().init("CPU0:threads=1");
  const Values expected = run_graph(*cpu, one.graph, one.leaves).at(one.node);
  const Values got = run_node(one.graph, *one.node, one.leaves);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << "element " << i;
}

void expect_close(Case& one, Result where = Result::kApart, Tolerance tolerance = {1e-11}) {
  const Values expected = reference_eval(one.graph, one.leaves).at(one.node);
  EXPECT_TRUE(close_to(run_node(one.graph, *one.node, one.leaves, where), expected, tolerance));
}

int64_t count(const Shape& shape) {
  return shape[0] * shape[1] * shape[2] * shape[3];
}
Values normal_values(int64_t count, double mean = 0, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(static_cast<float>(mean));
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

/// Generates element i of long rows with n elements.
struct Pattern {
  const char* name;
  double (*value)(int64_t i, int64_t n, std::mt19937& random);
};

double wild_value(std::mt19937& random) {
  const double odd[] = {kNan, -0.0, 0.0, random() % 50 == 0 ? kInfinity : 1.0, random() % 2 == 0 ? -kInfinity : 1e-40};
  const size_t i = random() % 8;
  return i < std::size(odd) ? odd[i] : static_cast<double>(random() % 7) - 3;
}

const Pattern kPatterns[] = {
    {"random", [](int64_t, int64_t, std::mt19937& r) { return static_cast<double>(r() % 4096) / 16 - 128; }},
    {"ascending", [](int64_t i, int64_t n, std::mt19937&) { return static_cast<double>(i * 256 / n); }},
    {"descending", [](int64_t i, int64_t n, std::mt19937&) { return static_cast<double>((n - i) * 256 / n); }},
    {"equal", [](int64_t, int64_t, std::mt19937&) { return 2.5; }},
    {"nan", [](int64_t, int64_t, std::mt19937&) { return double{kNan}; }},
    {"minus infinity and nan",
     [](int64_t i, int64_t, std::mt19937&) { return double{i % 3 == 1 ? -kInfinity : kNan}; }},
    {"wild", [](int64_t, int64_t, std::mt19937& r) { return wild_value(r); }},
    // The 64 largest values are adjacent, so only a few threads of one block hold these values.
    {"heap", [](int64_t i, int64_t n, std::mt19937&) { return static_cast<double>(i / 64 == n / 128 ? i % 64 : -1); }},
};

Values pattern_values(const Pattern& pattern, const Shape& shape) {
  std::mt19937 random(3);
  Values values;
  for (int64_t i = 0; i < count(shape); ++i) values.push_back(pattern.value(i % shape[0], shape[0], random));
  return values;
}

/// Returns a view [n, rows] of a tensor [rows + 1, n]. The elements of the view are not adjacent.
Tensor* transposed(Graph& g, Tensor* whole) {
  return transpose(g, slice(g, whole, {0, 1, whole->shape[0] - 1}));
}

class LongRows : public ::testing::TestWithParam<Pattern> {
 protected:
  static void check(const Shape& shape, const Make& build, DType dtype = DType::kF32) {
    SCOPED_TRACE(to_string(shape));
    Case one(dtype, shape, pattern_values(GetParam(), shape), build);
    SCOPED_TRACE(to_string(one.graph));
    expect_same_as_cpu(one);
  }
};
INSTANTIATE_TEST_SUITE_P(All, LongRows, ::testing::ValuesIn(kPatterns), [](const auto& info) {
  std::string name = info.param.name;
  std::erase(name, ' ');
  return name;
});

TEST_P(LongRows, TopKMatchesTopKOfCpu) {
  for (const int64_t k : {1, 2, 40, 255, 256}) {
    check({40000, 2, 1, 1}, [k](Graph& g, Tensor* x) { return top_k(g, x, k); });
  }
}

TEST_P(LongRows, TopKNearBlockSizesMatchesTopKOfCpu) {
  for (const int64_t length : {31, 33, 256, 257, 300, 4095, 4096, 4097, 4099, 4360, 8192}) {
    for (const int64_t k : {1, 20, 256}) {
      check({length, 1, 1, 1}, [k](Graph& g, Tensor* x) { return top_k(g, x, std::min(k, x->shape[0])); });
    }
  }
}

TEST_P(LongRows, ArgmaxMatchesArgmaxOfCpu) {
  for (const Shape& shape : {Shape{40000, 1, 2, 1}, Shape{16384, 1, 1, 1}, Shape{16383, 1, 1, 1},
                             Shape{20001, 17, 1, 1}, Shape{513, 5, 1, 1}, Shape{131077, 1, 1, 1}}) {
    check(shape, [](Graph& g, Tensor* x) { return argmax(g, x); });
  }
}

TEST_P(LongRows, Handles16BitAndStridedElements) {
  const Make builds[] = {
      [](Graph& g, Tensor* x) { return top_k(g, transposed(g, x), 40); },
      [](Graph& g, Tensor* x) { return argmax(g, transposed(g, x)); },
  };
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Make& build : builds) check({4, 9001, 1, 1}, build, dtype);
  }
}

TEST(VocabularyRows, TopKOfVocabularyMatchesTopKOfCpu) {
  constexpr Shape kShape{131072, 1, 1, 1};
  for (const int64_t k : {40, 256}) {
    Case one(DType::kF32, kShape, normal_values(kShape[0]), [k](Graph& g, Tensor* x) { return top_k(g, x, k); });
    expect_same_as_cpu(one);
  }
}

// --- sums along rows ---

/// Shapes with few or many rows. Some rows fit in one warp or one block. Some rows are not aligned to 16 bytes, and
/// some rows are too long for the registers of a block.
constexpr Shape kSumShapes[] = {{512, 7, 1, 1},  {513, 2, 1, 1},   {1000, 20, 1, 1}, {4096, 1, 2, 1},
                                {4097, 3, 1, 1}, {16384, 1, 1, 1}, {16388, 1, 2, 1}, {20003, 2, 1, 1}};

TEST(NormsOfRows, MatchReferenceInPlaceAndOutOfPlace) {
  const std::pair<Make, double> all[] = {
      // each case is a node and the mean of its input
      {[](Graph& g, Tensor* x) { return rms_norm(g, x, {1e-6f}); }, 0},
      {[](Graph& g, Tensor* x) { return layer_norm(g, x, {1e-6f}); }, 0},
      {[](Graph& g, Tensor* x) { return layer_norm(g, x, {1e-6f}); }, 1e4},
      {[](Graph& g, Tensor* x) { return soft_max(g, x, nullptr, nullptr, {5.0f}); }, 0}};
  for (const auto& [build, mean] : all) {
    for (const Shape& shape : kSumShapes) {
      for (const Result where : {Result::kApart, Result::kInPlace}) {
        Case one(DType::kF32, shape, normal_values(count(shape), mean), build);
        SCOPED_TRACE(to_string(one.graph));
        expect_close(one, where);
      }
    }
  }
}

TEST(NormsOfRows, SumRowsAddsInDouble) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : kSumShapes) {
      SCOPED_TRACE(to_string(shape));
      Values values = normal_values(count(shape));
      values[0] = 1e6;  // an f32 sum would lose digits
      values[static_cast<size_t>(shape[0]) - 1] = -1e6;
      Case one(dtype, shape, values, [](Graph& g, Tensor* x) { return sum_rows(g, x); });
      expect_close(one, Result::kApart, {1e-13});
    }
  }
}

// --- soft_max ---

/// `x` has the shape [length, 3, 2, 1]. Each of the two batches has a mask. Row 1 is fully masked. Some masked elements
/// are NaN or infinite.
void check_soft_max(int64_t length, DType mask_dtype, bool with_sinks, Result where) {
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {length, 3, 2, 1});
  Tensor* mask = graph.input("mask", mask_dtype, {length, 3, 2, 1});
  Tensor* sinks = with_sinks ? graph.input("sinks", DType::kF32, {2, 1, 1, 1}) : nullptr;
  Tensor* node = graph.output(soft_max(graph, x, mask, sinks, {0.5f}));
  TensorValues leaves{{x, normal_values(x->elements())}, {mask, Values(static_cast<size_t>(mask->elements()), 0.25)}};
  for (size_t i = 0; i < leaves[mask].size(); ++i) {
    const size_t row = i / static_cast<size_t>(length);
    if (row % 3 != 1 && i % 5 != 0) continue;
    leaves[mask][i] = -kInfinity;
  }
  if (sinks) leaves[sinks] = {0.75, -2.5};
  const Values expected = reference_eval(graph, leaves).at(node);
  for (size_t i = 0; i < leaves[mask].size(); i += 7) {
    if (leaves[mask][i] == -kInfinity) leaves[x][i] = i % 2 == 0 ? kNan : kInfinity;
  }
  const Values got = run_node(graph, *node, leaves, where);
  EXPECT_TRUE(close_to(got, expected, {1e-11}));
  for (int64_t i = length; i < 2 * length; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], 0) << "fully masked row";
}

TEST(SoftMaxOfRows, HandlesMasksSinksAndFullyMaskedRows) {
  for (const int64_t length : {70, 512, 516, 3001, 8192, 8200, 20003}) {
    for (const DType mask : {DType::kF32, DType::kF16}) {
      for (const bool sinks : {false, true}) {
        for (const Result where : {Result::kApart, Result::kInPlace}) {
          SCOPED_TRACE(::testing::Message() << length << " " << name_of(mask) << " " << sinks);
          check_soft_max(length, mask, sinks, where);
        }
      }
    }
  }
}

TEST(SoftMaxOfRows, UnmaskedNaNReachesOnlyItsRow) {
  for (const int64_t length : {1, 5, 300, 9000}) {
    Values values(static_cast<size_t>(3 * length), 1);  // row 0 is all NaN, row 1 has no NaN, and row 2 has one NaN
    std::fill_n(values.begin(), length, kNan);
    values.back() = kNan;
    Case one(DType::kF32, {length, 3, 1, 1}, values,
             [](Graph& g, Tensor* x) { return soft_max(g, x, nullptr, nullptr, {}); });
    Values expected(values.size(), kNan);
    std::fill_n(expected.begin() + length, length, 1.0 / static_cast<double>(length));
    EXPECT_TRUE(close_to(run_node(one.graph, *one.node, one.leaves), expected, {1e-11})) << length;
  }
}

TEST(SoftMaxOfRows, NaNInASinkReachesOnlyItsRows) {
  for (const int64_t length : {1, 5, 300, 9000}) {
    for (const float odd : {kNan, -kNan}) {
      Graph graph;
      Tensor* x = graph.input("x", DType::kF32, {length, 2, 2, 1});
      Tensor* sinks = graph.input("sinks", DType::kF32, {2, 1, 1, 1});
      Tensor* node = graph.output(soft_max(graph, x, nullptr, sinks, {}));
      Values values(static_cast<size_t>(4 * length), 1);  // each sink has a row of ones and a row of -infinity
      std::fill_n(values.begin() + length, length, -kInfinity);
      std::fill_n(values.begin() + 3 * length, length, -kInfinity);
      Values expected(values.size(), 0);
      std::fill_n(expected.begin(), 2 * length, kNan);
      std::fill_n(expected.begin() + 2 * length, length, std::exp(1) / (length * std::exp(1) + std::exp(0.5)));
      EXPECT_TRUE(close_to(run_node(graph, *node, {{x, values}, {sinks, {odd, 0.5}}}), expected, {1e-11})) << length;
    }
  }
}

// --- rope ---

TEST(RopeOfRows, HandlesLargePositionsAndManyPairs) {
  const RopeParams yarn{.dims = 0, .freq_scale = 0.25f, .ext_factor = 1.0f, .original_context = 4096};
  for (const Shape& shape : {Shape{128, 32, 3, 2}, Shape{600, 3, 2, 1}, Shape{1026, 1, 1, 1}}) {
    for (const int64_t dims : {shape[0], shape[0] - 80}) {
      for (const RopeMode mode : {RopeMode::kNeighbours, RopeMode::kHalves}) {
        for (const Result where : {Result::kApart, Result::kInPlace}) {
          SCOPED_TRACE(::testing::Message() << to_string(shape) << " " << dims << " " << static_cast<int>(mode));
          RopeParams params = dims == shape[0] ? RopeParams{} : yarn;
          params.dims = dims;
          if (dims < shape[0] && mode == RopeMode::kHalves) params.offset = 41;
          params.mode = mode;
          Case one(DType::kF32, shape, normal_values(count(shape)), [&](Graph& g, Tensor* x) {
            return rope(g, x, g.input("positions", DType::kI32, {shape[2], 1, 1, 1}), nullptr, params);
          });
          Values& positions = one.leaves[one.graph.find("positions")];
          for (int64_t t = 1; t <= shape[2]; ++t) positions.push_back(static_cast<double>(1000003 * t));
          expect_close(one, where);
        }
      }
    }
  }
}

// --- causal_conv and gated_delta ---

constexpr int64_t kBefore = 5, kTokens = 20, kAll = kBefore + kTokens + 1;

/// The input holds kBefore tokens of another sequence, kTokens tokens of the tested sequence, and padding. The other
/// sequence, the padding and the state are NaN and must not change the results of the tested sequence.
void expect_finite(Graph& graph, Tensor* node) {
  graph.output(node);
  TensorValues leaves = random_leaves(graph, 1);
  for (auto& [leaf, values] : leaves) {
    if (leaf->name == "state") std::fill(values.begin(), values.end(), kNan);
    if (leaf->name == "weight" || leaf->name == "state" || leaf->dtype != DType::kF32) continue;
    const auto width = static_cast<int64_t>(values.size()) / kAll;
    std::fill_n(values.begin(), kBefore * width, kNan);
    std::fill_n(values.end() - width, width, kNan);
  }
  Values& positions = leaves.at(graph.find("positions"));
  for (int64_t i = 0; i < kAll; ++i) positions[i] = static_cast<double>(i < kBefore ? 5 + i : i - kBefore);
  positions.back() = -1;
  const Values expected = reference_eval(graph, leaves).at(node), got = run_node(graph, *node, leaves);
  const int64_t width = node->shape[0], columns = node->shape[1];
  for (int64_t i = 0; i < std::ssize(got); ++i) {
    const int64_t column = i / width % columns;
    if (column < kBefore) continue;
    ASSERT_NEAR(got[i], expected[i], 1e-5) << "column " << column << ", element " << i % width;
  }
}

TEST(CudaStateOps, IgnoreValuesOutsideTheSequence) {
  Graph conv, delta;
  const auto f32 = [](Graph& g, const char* name, Shape shape) { return g.input(name, DType::kF32, shape); };
  const auto positions = [](Graph& g) { return g.input("positions", DType::kI32, {kAll, 1, 1, 1}); };
  expect_finite(conv, causal_conv(conv, f32(conv, "x", {9, kAll, 1, 1}), f32(conv, "weight", {4, 9, 1, 1}),
                                  f32(conv, "state", {9, 3, 1, 1}), positions(conv)));
  const Shape rows{12, 1, kAll, 1}, shares{1, kAll, 1, 1};
  expect_finite(delta, gated_delta(delta, f32(delta, "q", rows), f32(delta, "k", rows), f32(delta, "v", rows),
                                   f32(delta, "decay", shares), f32(delta, "beta", shares),
                                   f32(delta, "state", {12, 12, 1, 1}), positions(delta), {}));
}

// --- rms_norm with its neighbours ---

/// Checks `y = a + b` and `z = rms_norm(y) * w` in one launch. If `sum` is false, checks `z = rms_norm(a) * w`. If y_on
/// is not nullptr, `y` overwrites the tensor with this name. The same applies to `z` and z_on.
void check_fused_norm(const Shape& shape, bool sum, const char* y_on, const char* z_on) {
  Graph graph;
  Tensor* a = graph.input("a", DType::kF32, shape);
  Tensor* b = graph.input("b", DType::kF32, shape);
  Tensor* w = graph.input("w", DType::kF32, {shape[0], 1, 1, 1});
  Tensor* y = graph.output(add(graph, a, b));
  Tensor* z = graph.output(mul(graph, rms_norm(graph, sum ? y : a, {1e-5f}), w));
  TensorValues leaves{
      {a, normal_values(a->elements())}, {b, normal_values(b->elements(), 0.5, 2)}, {w, normal_values(shape[0], 1, 3)}};
  const TensorValues expected = reference_eval(graph, leaves);
  CudaRun cuda(graph, leaves);
  if (y_on != nullptr) y->data = graph.find(y_on)->data;
  if (z_on != nullptr) z->data = graph.find(z_on)->data;
  const cuda::NormWeight weight(*w);
  if (sum) {
    cuda::launch_add_rms_norm(cuda.context, cuda::view_of(*a), cuda::view_of(*b), cuda::view_of(*y), weight,
                              cuda::view_of(*z), 1e-5f);
  } else {
    cuda::launch_rms_norm_mul(cuda.context, cuda::view_of(*a), weight, cuda::view_of(*z), 1e-5f);
  }
  check_cuda(cudaGetLastError());
  check_cuda(cudaStreamSynchronize(cuda.context.stream));
  if (sum) {
    EXPECT_TRUE(close_to(cuda.values(*y), expected.at(y), {1e-11}));
  }
  EXPECT_TRUE(close_to(cuda.values(*z), expected.at(z), {1e-11}));
}

TEST(FusedNorm, FusesSumNormAndProduct) {
  const std::pair<const char*, const char*> places[] = {
      {nullptr, nullptr}, {"a", nullptr}, {"b", nullptr}, {"a", "b"}, {"b", "a"}};
  for (const Shape& shape : {Shape{7, 5, 1, 1}, Shape{512, 6, 1, 1}, Shape{513, 3, 1, 1}, Shape{4096, 1, 1, 1},
                             Shape{4096, 20, 1, 1}, Shape{8192, 2, 1, 1}, Shape{20003, 2, 1, 1}}) {
    for (const auto& [y_on, z_on] : places) {
      SCOPED_TRACE(::testing::Message() << to_string(shape) << " " << (y_on ? y_on : "") << (z_on ? z_on : ""));
      check_fused_norm(shape, true, y_on, z_on);
    }
  }
}

TEST(FusedNorm, FusesNormAndProduct) {
  for (const Shape& shape : kSumShapes) {
    SCOPED_TRACE(to_string(shape));
    for (const char* z_on : {static_cast<const char*>(nullptr), "a"}) check_fused_norm(shape, false, nullptr, z_on);
  }
}

TEST(FusedNorm, AcceptsOnlyDenseF32RowsOfOneShape) {
  Graph graph;
  Tensor* a = graph.input("a", DType::kF32, {64, 3, 1, 1});
  Tensor* b = graph.input("b", DType::kF32, {64, 3, 1, 1});
  Tensor* row = graph.input("row", DType::kF32, {64, 1, 1, 1});
  Tensor* half = graph.input("half", DType::kF16, {64, 3, 1, 1});
  Tensor* wide = graph.input("wide", DType::kF32, {65, 3, 1, 1});
  Tensor* part = slice(graph, wide, {0, 0, 64});
  EXPECT_TRUE(cuda::can_fuse_rms_norm(*a, nullptr, nullptr, *row, *b));
  EXPECT_TRUE(cuda::can_fuse_rms_norm(*a, b, a, *row, *b));
  EXPECT_FALSE(cuda::can_fuse_rms_norm(*a, b, nullptr, *row, *b)) << "the sum is not stored";
  EXPECT_FALSE(cuda::can_fuse_rms_norm(*a, row, a, *row, *b)) << "an operand is broadcast";
  EXPECT_FALSE(cuda::can_fuse_rms_norm(*half, nullptr, nullptr, *row, *b));
  EXPECT_FALSE(cuda::can_fuse_rms_norm(*part, nullptr, nullptr, *row, *b)) << "there are gaps between rows";
  EXPECT_FALSE(cuda::can_fuse_rms_norm(*a, nullptr, nullptr, *b, *b)) << "each row has its own weight";
}

}  // namespace
}  // namespace shoal::test
