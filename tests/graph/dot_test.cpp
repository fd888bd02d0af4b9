#include <gtest/gtest.h>

#include "graph/ops/ops.h"
#include "graph/text.h"

namespace shoal {
namespace {

TEST(Dot, Smoke) {
  Graph g("a \"quoted\" name");
  TensorContext weights;
  Tensor* w = weights.add("w", DType::kQ8_0, {32, 2, 1, 1});
  Tensor* x = g.input("x", DType::kF32, {32, 1, 1, 1});
  g.output(reshape(g, mul_mat(g, w, x, "y"), {1, 2, 1, 1}, "z"));
  EXPECT_EQ(to_dot(g),
            "digraph \"a \\\"quoted\\\" name\" {\n"
            "  t0 [label=\"x\\nf32 [32]\", shape=box];\n"
            "  t1 [label=\"w\\nq8_0 [32, 2]\", shape=box, style=filled, fillcolor=lightgrey];\n"
            "  t2 [label=\"y\\nmul_mat\\nf32 [2]\", shape=ellipse];\n"
            "  t1 -> t2 [label=\"0\"];\n"
            "  t0 -> t2 [label=\"1\"];\n"
            "  t3 [label=\"z\\nreshape {shape=[1,2,1,1]}\\nf32 [1, 2]\", shape=ellipse, style=dashed, peripheries=2];\n"
            "  t2 -> t3 [label=\"0\"];\n"
            "}\n");
}

}  // namespace
}  // namespace shoal
