// Results have the same bits with 1, 2 and 3 threads. Every case is so large that a backend uses several threads. A
// case has many rows or one long row.
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "devices/device.h"
#include "graph/ops/ops.h"
#include "graph/text.h"
#include "tests/ops/op_cases.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace shoal::test {
namespace {

constexpr Shape kRows{130, 41, 5, 1};
constexpr Shape kLongRow{70001, 1, 1, 1};

struct Build {
  Graph& g;
  TensorContext& w;
  Shape shape;
  Tensor* x(DType dtype = DType::kF32, const char* name = "x") { return g.input(name, dtype, shape); }
  Tensor* y() { return g.input("y", DType::kF32, {shape[0], 1, shape[2], 1}); }
  Tensor* integers(const char* name, int64_t n) { return g.input(name, DType::kI32, {n, 1, 1, 1}); }
  Tensor* weight(DType dtype, const Shape& of) { return w.add("w", dtype, of); }
  Tensor* cache(const char* name, DType dtype, const Shape& of) { return w.add(name, dtype, of, Role::kCache); }
};

Tensor* long_attention(Build b, int64_t queries) {
  Tensor* q = b.g.input("q", DType::kF32, {64, queries, 6, 1});
  Tensor* positions = b.integers("positions", queries);
  return attention(b.g, q, b.cache("k", DType::kF16, {64, 3000, 2, 1}), b.cache("v", DType::kQ8_0, {96, 3000, 2, 1}),
                   positions, nullptr, b.weight(DType::kF32, {6, 1, 1, 1}), {.scale = 0.2f, .causal = true});
}

Tensor* delta(Build b, int64_t tokens) {
  const auto f32 = [&](const char* name, Shape shape) { return b.g.input(name, DType::kF32, shape); };
  return gated_delta(b.g, f32("q", {72, 1, tokens, 1}), f32("k", {72, 1, tokens, 1}), f32("v", {72, 3, tokens, 1}),
                     f32("decay", {3, tokens, 1, 1}), f32("beta", {3, tokens, 1, 1}), f32("state", {72, 72, 3, 1}),
                     b.integers("positions", tokens), {});
}

using Make = std::function<Tensor*(Build)>;

/// An op may have several cases. If this map has no case for an op with one source, the test runs the op with default
/// parameters.
const std::multimap<Op, Make> kCases = {
    {Op::kGetRows,
     [](Build b) {
       return get_rows(b.g, b.weight(DType::kQ4_K, {1024, 50, 1, 1}), b.integers("ids", 37));
     }},
    {Op::kSetRows,
     [](Build b) {
       Tensor* rows = b.g.input("rows", DType::kF32, {512, 33, 3, 1});
       return set_rows(b.g, b.cache("c", DType::kQ8_0, {512, 64, 3, 1}), rows, b.integers("ids", 33));
     }},
    {Op::kSetSlice,
     [](Build b) {
       Tensor* x = b.g.input("x", DType::kF32, {512, 33, 3, 1});
       return set_slice(b.g, b.cache("c", DType::kQ8_0, {512, 64, 3, 1}), x, {1, 7, {}});
     }},
    {Op::kMulMat,
     [](Build b) {
       return mul_mat(b.g, b.weight(DType::kQ4_0, {512, 301, 1, 1}), b.g.input("x", DType::kF32, {512, 67, 1, 1}),
                      {DType::kBF16});
     }},
    {Op::kMulMat,
     [](Build b) {
       return mul_mat(b.g, b.weight(DType::kF16, {512, 301, 1, 1}), b.g.input("x", DType::kF32, {512, 1, 1, 1}));
     }},
    {Op::kMulMat,
     [](Build b) {
       return mul_mat(b.g, b.weight(DType::kQ4_0, {512, 301, 1, 1}), b.g.input("x", DType::kF32, {512, 67, 1, 1}));
     }},
    {Op::kMulMatId,
     [](Build b) {
       return mul_mat_id(b.g, b.weight(DType::kQ8_0, {256, 71, 5, 1}), b.g.input("x", DType::kF32, {256, 1, 19, 1}),
                         b.g.input("ids", DType::kI32, {2, 19, 1, 1}));
     }},
    {Op::kAdd, [](Build b) { return add(b.g, b.x(), b.y()); }},
    {Op::kSub, [](Build b) { return sub(b.g, b.x(DType::kF16), b.y()); }},
    {Op::kMul, [](Build b) { return mul(b.g, b.x(), b.y()); }},
    {Op::kDiv, [](Build b) { return div(b.g, b.x(), b.y()); }},
    {Op::kScale,
     [](Build b) {
       return scale(b.g, b.x(), {0.3f, 1});
     }},
    {Op::kUnary, [](Build b) { return unary(b.g, b.x(), UnaryKind::kSilu); }},
    {Op::kUnary, [](Build b) { return unary(b.g, b.x(), UnaryKind::kTanh); }},
    {Op::kClamp,
     [](Build b) {
       return clamp(b.g, b.x(), {-0.1f, 0.2f});
     }},
    {Op::kGlu, [](Build b) { return glu(b.g, b.x(), b.x(DType::kF32, "up"), GluKind::kGegluQuick); }},
    {Op::kCompare, [](Build b) { return compare(b.g, b.x(DType::kF16), b.y(), CompareKind::kLess); }},
    {Op::kWhere,
     [](Build b) {
       return where(b.g, b.g.input("c", DType::kI32, {1, b.shape[1], b.shape[2], 1}), b.x(), b.y());
     }},
    {Op::kPool2d,
     [](Build b) {
       const PoolParams params{PoolKind::kAverage, {3, 1}, {2, 1}, {1, 0, 0, 0}};
       return pool_2d(b.g, b.x(), params);
     }},
    {Op::kPad,
     [](Build b) {
       return pad(b.g, b.x(DType::kBF16), {{3, 0, 1, 0}, {0, 2, 0, 0}, PadMode::kEdge});
     }},
    {Op::kUpsample,
     [](Build b) {
       return upsample(b.g, b.x(), {{b.shape[0] + 3, 2 * b.shape[1]}, UpsampleMode::kNearest});
     }},
    {Op::kUpsample,
     [](Build b) {
       return upsample(b.g, b.x(), {{b.shape[0] + 3, 2 * b.shape[1]}, UpsampleMode::kBilinear});
     }},
    {Op::kSoftMax, [](Build b) { return soft_max(b.g, b.x(), nullptr, nullptr, {2}); }},
    {Op::kRope,
     [](Build b) {
       return rope(b.g, b.x(), b.integers("positions", b.shape[2]), nullptr,
                   {.dims = std::min<int64_t>(b.shape[0], 64)});
     }},
    {Op::kTopK, [](Build b) { return top_k(b.g, b.x(DType::kF16), 40); }},
    {Op::kAttention, [](Build b) { return long_attention(b, 1); }},
    {Op::kAttention, [](Build b) { return long_attention(b, 29); }},
    {Op::kMergeAttention,
     [](Build b) {
       return merge_attention(b.g, b.g.input("parts", DType::kF32, {257, 64, 37, 3}),
                              b.g.input("lse", DType::kF32, {3, 64, 37, 1}));
     }},
    {Op::kConv2d,
     [](Build b) {
       return conv_2d(b.g, b.weight(DType::kF16, {3, 3, 70, 101}), b.g.input("x", DType::kF32, {33, 9, 70, 1}),
                      {.pads = {1, 1, 1, 1}});
     }},
    {Op::kConv2d,
     [](Build b) {
       return conv_2d(b.g, b.weight(DType::kF32, {3, 3, 1, 64}), b.g.input("x", DType::kF32, {33, 19, 64, 1}),
                      {.stride = {2, 2}, .groups = 64});
     }},
    {Op::kConvTranspose2d,
     [](Build b) {
       return conv_transpose_2d(b.g, b.weight(DType::kF32, {4, 4, 101, 70}),
                                b.g.input("x", DType::kF32, {17, 9, 70, 1}), {.stride = {2, 2}, .pads = {1, 1, 1, 1}});
     }},
    {Op::kCausalConv,
     [](Build b) {
       const int64_t channels = b.shape[0];
       return causal_conv(b.g, b.g.input("x", DType::kF32, {channels, b.shape[1], 1, 1}),
                          b.weight(DType::kF32, {4, channels, 1, 1}),
                          b.g.input("state", DType::kF32, {channels, 3, 1, 1}), b.integers("positions", b.shape[1]));
     }},
    {Op::kGatedDelta, [](Build b) { return delta(b, 1); }},
    {Op::kGatedDelta, [](Build b) { return delta(b, 77); }},
    {Op::kCast, [](Build b) { return cast(b.g, b.x(), DType::kBF16); }},
    {Op::kContiguous, [](Build b) { return contiguous(b.g, transpose(b.g, b.x())); }},
    {Op::kConcat,
     [](Build b) {
       return concat(b.g, {b.x(), b.y(), b.x(DType::kF32, "z")}, 1);
     }},
    {Op::kRepeat,
     [](Build b) {
       return repeat(b.g, b.x(), {2 * b.shape[0], 3 * b.shape[1], b.shape[2], 2});
     }},
    {Op::kFill,
     [](Build b) {
       return fill(b.g, {DType::kF16, b.shape, 2.5f});
     }},
};

std::vector<Make> cases_of(Op op) {
  std::vector<Make> cases;
  const auto [first, last] = kCases.equal_range(op);
  for (auto one = first; one != last; ++one) cases.push_back(one->second);
  if (cases.empty()) cases.push_back([op](Build b) { return with_defaults(b.g, op, b.x()); });
  return cases;
}

class Threads : public ::testing::TestWithParam<Op> {};

Values run_case(const Make& build, const Shape& shape, int threads, bool check_values) {
  Graph graph;
  TensorContext weights;
  Tensor* node = build({graph, weights, shape});
  require<InvalidArgument>(node != nullptr, "an op of several sources needs a case in tests/ops/threads_test.cpp");
  graph.output(node);
  TensorValues leaves = random_leaves(graph, 11);
  const auto backend = Registry::instance().init("CPU0:threads=" + std::to_string(threads));
  const Values result = run_graph(*backend, graph, leaves).at(node);
  if (check_values) {
    EXPECT_TRUE(close_to(result, reference_eval(graph, leaves).at(node), {1e-4})) << to_string(graph);
  }
  return result;
}

TEST_P(Threads, ResultsDoNotDependOnTheThreadCount) {
  for (const Make& make : cases_of(GetParam())) {
    for (const Shape& shape : {kRows, kLongRow}) {
      const Values alone = run_case(make, shape, 1, false);
      for (const int threads : {2, 3}) {
        const Values team = run_case(make, shape, threads, threads == 3 && shape == kRows);
        ASSERT_EQ(team.size(), alone.size());
        for (size_t i = 0; i < team.size(); ++i) {
          ASSERT_EQ(team[i], alone[i]) << threads << " threads, " << to_string(shape) << ", element " << i;
        }
      }
    }
  }
}

/// All compute ops except external. Each external op has its own kernels (tests/meta/device/external_op_test.cpp).
std::vector<Op> compute_ops() {
  std::vector<Op> ops;
  for (int i = 0; i < kOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    if (info(op).kind == OpKind::kCompute && op != Op::kExternal) ops.push_back(op);
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(All, Threads, ::testing::ValuesIn(compute_ops()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace shoal::test
