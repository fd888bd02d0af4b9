// Tests of ops that write their result into the memory of a source after the last use of this source. The results must
// match the reference.
#include <gtest/gtest.h>

#include <map>

#include "devices/device.h"
#include "graph/ops/ops.h"
#include "graph/text.h"
#include "tests/ops/op_cases.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace shoal::test {
namespace {

constexpr Shape kShape{70, 9, 4, 1};

/// Applies the op to `x`, a computed tensor of shape kShape. No other node uses `x`.
using Build = std::function<Tensor*(Graph& g, Tensor* x)>;

Tensor* other(Graph& g) {
  return g.input("other", DType::kF32, kShape);
}

/// If this map has no entry for an op with one source, the test runs the op with default parameters.
const std::multimap<Op, Build> kCases = {
    {Op::kAdd, [](Graph& g, Tensor* x) { return add(g, x, other(g)); }},
    {Op::kAdd, [](Graph& g, Tensor* x) { return add(g, x, x); }},
    {Op::kSub, [](Graph& g, Tensor* x) { return sub(g, other(g), x); }},
    {Op::kMul,
     [](Graph& g, Tensor* x) {
       return mul(g, x, g.input("row", DType::kF32, {kShape[0], 1, 1, 1}));
     }},
    {Op::kDiv, [](Graph& g, Tensor* x) { return div(g, x, other(g)); }},
    {Op::kScale,
     [](Graph& g, Tensor* x) {
       return scale(g, x, {3, 1});
     }},
    {Op::kUnary, [](Graph& g, Tensor* x) { return unary(g, x, UnaryKind::kSilu); }},
    {Op::kClamp,
     [](Graph& g, Tensor* x) {
       return clamp(g, x, {-0.2f, 0.2f});
     }},
    {Op::kGlu, [](Graph& g, Tensor* x) { return glu(g, x, other(g), GluKind::kSwiglu); }},
    {Op::kGlu, [](Graph& g, Tensor* x) { return glu(g, other(g), x, GluKind::kSwiglu); }},
    {Op::kRope,
     [](Graph& g, Tensor* x) {
       return rope(g, x, g.input("positions", DType::kI32, {kShape[2], 1, 1, 1}), nullptr, {.dims = 64});
     }},
    {Op::kRope,
     [](Graph& g, Tensor* x) {
       const RopeParams params{.dims = 48, .offset = 9, .mode = RopeMode::kHalves};
       return rope(g, x, g.input("positions", DType::kI32, {kShape[2], 1, 1, 1}), nullptr, params);
     }},
};

std::vector<Build> cases_of(Op op) {
  std::vector<Build> cases;
  const auto [first, last] = kCases.equal_range(op);
  for (auto one = first; one != last; ++one) cases.push_back(one->second);
  if (cases.empty()) cases.push_back([op](Graph& g, Tensor* x) { return with_defaults(g, op, x); });
  return cases;
}

class InPlace : public ::testing::TestWithParam<Op> {};

TEST_P(InPlace, ResultsMatchReference) {
  const auto backend = Registry::instance().init("CPU0:threads=2");
  for (const Build& build : cases_of(GetParam())) {
    Graph graph;
    Tensor* x = scale(graph, graph.input("x", DType::kF32, kShape), {2, 0.5f});
    Tensor* node = build(graph, x);
    ASSERT_NE(node, nullptr) << name_of(GetParam()) << ": an op of several sources needs a case in kCases";
    Tensor* result = graph.output(scale(graph, node, {1, 0}));
    SCOPED_TRACE(to_string(graph));
    TensorValues leaves = random_leaves(graph, 3);
    GraphRun run(*backend, graph, leaves);
    EXPECT_EQ(node->data, x->data) << "the op does not run in place, so the test has no effect";
    run.run();
    EXPECT_TRUE(close_to(read_values(*result), reference_eval(graph, leaves).at(result), {1e-11}));
  }
}

std::vector<Op> in_place_ops() {
  std::vector<Op> ops;
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& row = info(static_cast<Op>(i));
    if (row.kind == OpKind::kCompute && row.in_place_sources != 0) ops.push_back(row.op);
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(All, InPlace, ::testing::ValuesIn(in_place_ops()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace shoal::test
