// causal_conv and gated_delta: what may lie before a text. PluginConformance has the other cases.
#include <gtest/gtest.h>

#include <limits>

#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"

namespace shoal::test {
namespace {

/// A text of `tokens` behind a state and tokens that are NaN, with padding that is NaN at the end.
void expect_finite(Graph& graph, Tensor* node, Tensor* positions, int64_t before, int64_t tokens) {
  graph.output(node);
  TensorValues leaves = random_leaves(graph, 1);
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const int64_t all = before + tokens + 1;
  for (auto& [leaf, values] : leaves) {
    if (leaf->name == "state") std::fill(values.begin(), values.end(), kNaN);
    if (leaf->name == "weight" || leaf->name == "state" || leaf == positions) continue;
    const auto width = static_cast<int64_t>(values.size()) / all;
    std::fill_n(values.begin(), before * width, kNaN);
    std::fill_n(values.end() - width, width, kNaN);
  }
  Values& of_tokens = leaves.at(positions);
  for (int64_t i = 0; i < all; ++i) of_tokens[i] = static_cast<double>(i < before ? 5 + i : i - before);
  of_tokens.back() = -1;
  CudaRun cuda(graph, leaves);
  cuda.run();
  const Values got = cuda.values(*node), expected = reference_eval(graph, leaves).at(node);
  const int64_t width = node->shape[0], columns = node->shape[1];
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) / width % columns;
    if (column < before) continue;
    ASSERT_NEAR(got[i], expected[i], 1e-5) << "column " << column << ", element " << i % width;
  }
}

TEST(CudaStateOps, WhatIsBeforeATextDoesNotCount) {
  const int64_t before = 5, tokens = 20, all = before + tokens + 1;
  Graph conv, delta;
  const auto f32 = [](Graph& g, const char* name, Shape shape) { return g.input(name, DType::kF32, shape); };
  Tensor* positions = conv.input("positions", DType::kI32, {all, 1, 1, 1});
  expect_finite(conv,
                causal_conv(conv, f32(conv, "x", {9, all, 1, 1}), f32(conv, "weight", {4, 9, 1, 1}),
                            f32(conv, "state", {9, 3, 1, 1}), positions),
                positions, before, tokens);
  positions = delta.input("positions", DType::kI32, {all, 1, 1, 1});
  const Shape rows{12, 1, all, 1}, shares{1, all, 1, 1};
  expect_finite(delta,
                gated_delta(delta, f32(delta, "q", rows), f32(delta, "k", rows), f32(delta, "v", rows),
                            f32(delta, "decay", shares), f32(delta, "beta", shares),
                            f32(delta, "state", {12, 12, 1, 1}), positions, {}),
                positions, before, tokens);
}

}  // namespace
}  // namespace shoal::test
