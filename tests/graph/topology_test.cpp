#include "graph/topology.h"

#include <gtest/gtest.h>

#include <memory>

#include "graph/ops/ops.h"

namespace shoal {
namespace {

struct Leaves {
  TensorContext context;
  Tensor* w = context.add("w", DType::kF32, {8, 4, 1, 1});
  Tensor* same = context.add("same", DType::kF32, {8, 4, 1, 1});
  Tensor* cache = context.add("cache", DType::kF32, {8, 4, 1, 1}, Role::kCache);
};

/// One variant of the example graph. The tests change one member at a time.
struct Variant {
  int64_t tokens = 2;
  DType dtype = DType::kF32;
  float factor = 2;
  bool other_weight = false, other_source = false, other_output = false, more = false, more_inputs = false;
  bool other_op = false;
  const Tensor* copied_from = nullptr;
};

std::unique_ptr<Graph> build(const Leaves& leaves, const Variant& v, const std::string& prefix = "") {
  auto graph = std::make_unique<Graph>(prefix);
  Tensor* x = graph->input(prefix + "x", DType::kF32, {8, v.tokens, 1, 1});
  Tensor* z = graph->input(prefix + "z", v.dtype, {4, v.tokens, 1, 1});
  z->copied_from = v.copied_from;
  if (v.more_inputs) graph->input(prefix + "unused", DType::kF32, {1, 1, 1, 1});
  Tensor* y = mul_mat(*graph, v.other_weight ? leaves.same : leaves.w, x, prefix + "y");
  Tensor* s = scale(*graph, y, {v.factor, 0}, prefix + "s");
  Tensor* e = v.other_op ? mul(*graph, v.other_source ? y : s, z) : add(*graph, v.other_source ? y : s, z);
  graph->output(v.other_output ? s : e);
  if (v.more) scale(*graph, e, {});
  return graph;
}

TEST(Topology, IgnoresNamesAndOutlivesTheGraph) {
  const Leaves leaves;
  auto first = build(leaves, {});
  const Topology topology(*first);
  first.reset();
  EXPECT_EQ(topology, Topology(*build(leaves, {}, "other.")));
  EXPECT_NE(topology, Topology(Graph()));
}

TEST(Topology, DetectsEveryDifferenceExceptNames) {
  const Leaves leaves;
  const Tensor elsewhere;
  const std::vector<Variant> others{
      {.tokens = 3},          {.dtype = DType::kF16},     {.factor = 3},  {.other_weight = true},
      {.other_source = true}, {.other_output = true},     {.more = true}, {.more_inputs = true},
      {.other_op = true},     {.copied_from = &elsewhere}};
  const Topology topology(*build(leaves, {}));
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_NE(topology, Topology(*build(leaves, others[i]))) << i;
    EXPECT_EQ(Topology(*build(leaves, others[i])), Topology(*build(leaves, others[i], "again."))) << i;
  }
}

TEST(Topology, CopiesOfDifferentWeightsDiffer) {
  const Leaves leaves;
  Graph made;
  Tensor* node = scale(made, made.input("a", DType::kF32, {4, 1, 1, 1}), {});
  Tensor* next = scale(made, node, {});
  const auto copy_of = [&](const Tensor* original) { return Topology(*build(leaves, {.copied_from = original})); };
  EXPECT_EQ(copy_of(node), copy_of(next)) << "the identity of a copied node does not matter";
  EXPECT_EQ(copy_of(node), copy_of(made.inputs()[0]));
  EXPECT_NE(copy_of(leaves.w), copy_of(leaves.same));
  EXPECT_NE(copy_of(leaves.w), copy_of(node));
  EXPECT_NE(copy_of(leaves.cache), copy_of(node));
  EXPECT_EQ(copy_of(leaves.w), copy_of(leaves.w));
}

TEST(Topology, AbsentSourceDiffersFromAPresentSource) {
  Graph with, without;
  for (Graph* graph : {&with, &without}) {
    Tensor* x = graph->input("x", DType::kF32, {8, 1, 1, 1});
    Tensor* mask = graph->input("mask", DType::kF32, {8, 1, 1, 1});
    soft_max(*graph, x, graph == &with ? mask : nullptr, nullptr, {});
  }
  EXPECT_NE(Topology(with), Topology(without));
}

}  // namespace
}  // namespace shoal
