#include "graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(TensorContext, FindsTensorsByNameAndKeepsTheirOrder) {
  TensorContext weights;
  Tensor* a = weights.add("a", DType::kF32, {4, 1, 1, 1});
  Tensor* b = weights.add("b", DType::kQ8_0, {32, 2, 1, 1}, Role::kCache);
  EXPECT_EQ(weights.find("a"), a);
  EXPECT_EQ(weights.find("b"), b);
  EXPECT_EQ(weights.find("c"), nullptr);
  EXPECT_THAT(weights.tensors(), ElementsAre(a, b));
  EXPECT_EQ(b->role, Role::kCache);
  EXPECT_EQ(b->strides, (Strides{34, 34, 68, 68}));
}

TEST(TensorContext, RefusesBadTensors) {
  TensorContext weights;
  weights.add("a", DType::kF32, {4, 1, 1, 1});
  const auto adding = [&](const char* name, DType dtype, Shape shape, Role role = Role::kWeight) {
    return [&weights, name, dtype, shape, role] { weights.add(name, dtype, shape, role); };
  };
  EXPECT_THAT(adding("a", DType::kF32, {4, 1, 1, 1}),
              ThrowsMessage<InvalidArgument>(HasSubstr("[a] a tensor of this name")));
  EXPECT_THAT(adding("b", DType::kF32, {4, -1, 1, 1}), ThrowsMessage<InvalidArgument>(HasSubstr("got [4, -1]")));
  EXPECT_THAT(adding("b", DType::kQ4_K, {128, 1, 1, 1}),
              ThrowsMessage<InvalidArgument>(HasSubstr("whole blocks of 256 q4_K elements")));
  EXPECT_THAT(adding("b", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40, 1, 1}),
              ThrowsMessage<InvalidArgument>(HasSubstr("fit in memory")));
  EXPECT_THAT(adding("b", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40, 0, 1}),
              ThrowsMessage<InvalidArgument>(HasSubstr("fit in memory")));
  EXPECT_THAT(adding("b", DType::kF32, {4, 1, 1, 1}, Role::kInput),
              ThrowsMessage<InvalidArgument>(HasSubstr("must be a weight or a cache")));
  EXPECT_EQ(weights.tensors().size(), 1u);
}

TEST(Graph, UidsAreUnique) {
  Graph a, b;
  EXPECT_NE(a.uid(), b.uid());
}

TEST(Graph, NodesHaveNamesAndIndices) {
  Graph g("tiny");
  Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* unnamed = g.input("", DType::kF32, {4, 1, 1, 1});
  Tensor* a = add(g, x, unnamed);
  Tensor* b = scale(g, a, {2.0f, 0.0f}, "twice");
  EXPECT_EQ(g.name(), "tiny");
  EXPECT_EQ(Graph().name(), "graph") << "this is the default name of a graph";
  EXPECT_EQ(unnamed->name, "input_1");
  EXPECT_EQ(a->name, "add_0");
  EXPECT_EQ(a->id, 0);
  EXPECT_EQ(b->id, 1);
  EXPECT_EQ(unnamed->id, 1);
  EXPECT_EQ(x->role, Role::kInput);
  EXPECT_EQ(b->role, Role::kCompute);
  EXPECT_FALSE(b->is_view());
  EXPECT_THAT(g.nodes(), ElementsAre(a, b));
  EXPECT_THAT(g.inputs(), ElementsAre(x, unnamed));
}

TEST(Graph, LeavesAreInOrderOfFirstUse) {
  Graph g;
  TensorContext weights;
  Tensor* w = weights.add("w", DType::kF32, {4, 1, 1, 1});
  Tensor* unused = g.input("unused", DType::kF32, {4, 1, 1, 1});
  Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* a = add(g, w, x);
  add(g, a, w);
  EXPECT_THAT(g.leaves(), ElementsAre(w, x));
  EXPECT_EQ(g.find("w"), w);
  EXPECT_EQ(g.find("unused"), unused);
  EXPECT_EQ(g.find("add_1"), g.nodes()[1]);
  EXPECT_EQ(g.find("missing"), nullptr);
}

TEST(Graph, AbsentSourcesAreStoredAsNull) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 3, 1, 1});
  EXPECT_THAT(g.add_node(Op::kSoftMax, SoftMaxParams{}, {x})->src, ElementsAre(x, nullptr, nullptr));
  EXPECT_THAT(glu_fused(g, x, GluKind::kSwiglu)->src, ElementsAre(x, nullptr));
  EXPECT_THAT(concat(g, {x, x}, 0)->src, ElementsAre(x, x));
}

TEST(Graph, CacheIsReadableOnlyThroughResultOfLatestWrite) {
  Graph g;
  TensorContext weights;
  Tensor* cache = weights.add("cache", DType::kF32, {4, 6, 1, 1}, Role::kCache);
  Tensor* ids = g.input("ids", DType::kI32, {6, 1, 1, 1});
  Tensor* rows = g.input("rows", DType::kF32, {4, 6, 1, 1});
  Tensor* before = slice(g, cache, {1, 0, 3}, "before");
  add(g, before, before);
  Tensor* first = set_rows(g, cache, rows, ids, {}, "first");
  Tensor* second = set_rows(g, first, rows, ids, {}, "second");
  add(g, slice(g, second, {1, 0, 3}), slice(g, second, {1, 3, 3}));
  for (Tensor* old : {cache, first, before}) {
    EXPECT_THAT([&] { scale(g, old, {}, "late"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("which second changed; use the result of second")));
  }
}

TEST(Graph, FrozenGraphAcceptsNoNewOutputs) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* a = scale(g, x, {}, "a");
  Tensor* b = g.output(scale(g, a, {}, "b"));
  g.freeze();
  EXPECT_THAT([&] { g.output(a); }, ThrowsMessage<InvalidArgument>(HasSubstr("[a] the graph is frozen")));
  EXPECT_EQ(g.output(b), b) << "b is already an output";
}

TEST(Graph, NodeBelongsToOnePlan) {
  Graph g("shared");
  Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
  scale(g, scale(g, x, {}, "a"), {}, "b");
  g.claim(0, 1, "CPU0");
  g.claim(1, 2, "CPU1");
  EXPECT_THAT([&] { g.claim(0, 2, "CPU2"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("graph 'shared': node a already has a plan on CPU0; destroy")));
  g.release(0, 1);
  EXPECT_THAT([&] { g.claim(0, 2, "CPU2"); }, ThrowsMessage<InvalidArgument>(HasSubstr("node b")));
  g.release(1, 2);
  g.claim(0, 2, "CPU2");
}

TEST(Graph, RefusedNodesLeaveTheGraphUnchanged) {
  Graph g, other;
  Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* foreign = scale(other, other.input("z", DType::kF32, {4, 1, 1, 1}), {}, "foreign");
  const auto adding = [&](Op op, OpParams params, std::vector<Tensor*> src) {
    return [&g, op, params, src] { g.add_node(op, params, src, "y"); };
  };
  EXPECT_THAT(adding(Op::kAdd, {}, {x}), ThrowsMessage<InvalidArgument>("[add y] expected 2 sources, got 1"));
  EXPECT_THAT(adding(Op::kSoftMax, SoftMaxParams{}, {}),
              ThrowsMessage<InvalidArgument>("[soft_max y] expected 1 to 3 sources, got 0"));
  EXPECT_THAT(adding(Op::kConcat, ConcatParams{}, {}),
              ThrowsMessage<InvalidArgument>("[concat y] expected 1 or more sources, got 0"));
  EXPECT_THAT(adding(Op::kAdd, {}, {x, nullptr}), ThrowsMessage<InvalidArgument>("[add y] source 1 is missing"));
  EXPECT_THAT(adding(Op::kConcat, ConcatParams{}, {x, nullptr}),
              ThrowsMessage<InvalidArgument>("[concat y] source 1 is missing"));
  EXPECT_THAT(
      adding(Op::kScale, ClampParams{}, {x}),
      ThrowsMessage<InvalidArgument>("[scale y] expected the parameters of this op, got the parameters of another op"));
  EXPECT_THAT(adding(Op::kAdd, {}, {x, foreign}),
              ThrowsMessage<InvalidArgument>("[add y] source 1 (foreign) is a node of another graph"));
  EXPECT_THAT(adding(Op::kAdd, {}, {x, foreign->src[0]}),
              ThrowsMessage<InvalidArgument>("[add y] source 1 (z) is an input of another graph"));
  EXPECT_THAT(adding(Op::kNone, {}, {}), ThrowsMessage<InvalidArgument>(HasSubstr("cannot be added")));
  EXPECT_THAT(
      [&] {
        add(g, x, g.input("x2", DType::kF32, {3, 1, 1, 1}));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("[add add_0]")));
  EXPECT_THAT([&] { g.input("bad", DType::kF32, {-3, 1, 1, 1}); }, ThrowsMessage<InvalidArgument>(HasSubstr("[bad]")));
  EXPECT_TRUE(g.nodes().empty());
  EXPECT_EQ(g.inputs().size(), 2u);
}

TEST(Graph, RefusesResultsTooLargeToAddress) {
  Graph g;
  TensorContext weights;
  Tensor* a = weights.add("a", DType::kF32, {1, int64_t{1} << 40, 1, 1});
  EXPECT_THAT([&] { mul_mat(g, a, a); }, ThrowsMessage<InvalidArgument>(HasSubstr("fits in memory")));
}

TEST(Graph, FrozenGraphAcceptsNoNodesOrInputs) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
  g.freeze();
  EXPECT_THAT([&] { scale(g, x, {}); }, ThrowsMessage<InvalidArgument>(HasSubstr("frozen")));
  EXPECT_THAT([&] { g.input("y", DType::kF32, {4, 1, 1, 1}); }, ThrowsMessage<InvalidArgument>(HasSubstr("frozen")));
}

TEST(Graph, OutputReturnsItsArgument) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* y = scale(g, x, {});
  EXPECT_EQ(g.output(y), y);
  EXPECT_TRUE(y->is_output);
  EXPECT_FALSE(x->is_output);
  EXPECT_THAT([&] { g.output(nullptr); }, testing::Throws<InvalidArgument>());
}

TEST(Graph, WholeRangeCoversAllNodes) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
  scale(g, x, {});
  const GraphRange range = whole(g);
  EXPECT_EQ(range.graph, &g);
  EXPECT_EQ(range.begin, 0);
  EXPECT_EQ(range.end, 1);
}

}  // namespace
}  // namespace shoal
