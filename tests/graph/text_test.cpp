// Tests of the text form of graphs. The tests compare the text with golden text. The text of every op and parameter
// must parse to an equal node.
#include "graph/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string reprint(const std::string& text) {
  Graph graph;
  TensorContext weights;
  parse_graph(text, graph, weights);
  return to_string(graph);
}

TEST(Text, PrintsTheGoldenText) {
  Graph g;
  TensorContext weights;
  Tensor* x = g.input("x", DType::kF32, {256, 4, 1, 1});
  Tensor* pos = g.input("pos", DType::kI32, {4, 1, 1, 1});
  g.input("unused", DType::kI64, {1, 1, 1, 1});
  Tensor* w = weights.add("blk.0.attn_q", DType::kQ8_0, {256, 64, 1, 1});
  Tensor* cache = weights.add("kc", DType::kF16, {32, 512, 2, 1}, Role::kCache);
  Tensor* h = reshape(g, mul_mat(g, w, x, "h"), {32, 2, 4, 1}, "heads");
  Tensor* r = rope(g, h, pos, nullptr, {.dims = 32, .mode = RopeMode::kHalves}, "r");
  g.output(set_rows(g, cache, permute(g, r, {0, 2, 1, 3}), pos, {}, "stored"));
  const std::string expected =
      "input  %x f32 [256, 4]\n"
      "input  %pos i32 [4]\n"
      "input  %unused i64 [1]\n"
      "weight %blk.0.attn_q q8_0 [256, 64]\n"
      "cache  %kc f16 [32, 512, 2]\n"
      "%h = mul_mat(%blk.0.attn_q, %x)                         # f32 [64, 4]\n"
      "%heads = reshape(%h) {shape=[32,2,4,1]}                 # f32 [32, 2, 4]\n"
      "%r = rope(%heads, %pos) {dims=32, mode=halves}          # f32 [32, 2, 4]\n"
      "%permute_3 = permute(%r) {axes=[0,2,1,3]}               # f32 [32, 4, 2]\n"
      "%stored = set_rows(%kc, %permute_3, %pos)               # f16 [32, 512, 2]\n"
      "output %stored\n";
  EXPECT_EQ(to_string(g), expected);
  EXPECT_EQ(reprint(expected), expected);
}

TEST(Text, PrintsOneNode) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 2, 1, 1});
  EXPECT_EQ(to_string(*x), "input  %x f32 [4, 2]");
  EXPECT_EQ(to_string(*scale(g, x, {0.5f, 0.0f}, "y")), "%y = scale(%x) {scale=0.5}  # f32 [4, 2]");
}

TEST(Text, OddAndRepeatedNamesBecomeUniqueAndParseable) {
  Graph g;
  Tensor* x = g.input("my x", DType::kF32, {4, 1, 1, 1});
  Tensor* y = scale(g, x, {}, "y");
  Tensor* z = scale(g, y, {}, "y");
  add(g, y, z, "y");
  const std::string text = to_string(g);
  EXPECT_THAT(text, HasSubstr("input  %my_x f32 [4]"));
  EXPECT_THAT(text, HasSubstr("%y.3 = add(%y, %y.2)"));
  EXPECT_EQ(reprint(text), text);
}

TEST(Text, PrintsOnlyNonDefaultParameters) {
  EXPECT_EQ(params_to_string(Op::kRope, RopeParams{}), "");
  EXPECT_EQ(params_to_string(Op::kMulMat, {}), "");
  EXPECT_EQ(params_to_string(Op::kRope, RopeParams{.dims = 32, .mode = RopeMode::kHalves}), "{dims=32, mode=halves}");
  EXPECT_EQ(params_to_string(Op::kGetRows, SelectParams{{{10, 2}, {40, 3}}}), "{ranges=[10:2,40:3]}");
  EXPECT_EQ(params_to_string(Op::kScale, ScaleParams{-0.0f, -0.0f}), "{scale=-0, bias=-0}");
}

TEST(Text, ParsesParameters) {
  const RopeParams rope{.dims = 32, .mode = RopeMode::kHalves};
  for (const char* text : {"{dims=32, mode=halves}", "dims=32,mode=halves", " { dims = 32 , mode = halves } "}) {
    EXPECT_EQ(std::get<RopeParams>(params_from_string(Op::kRope, text)), rope) << text;
  }
  for (const char* text : {"", "{}", " { } "}) {
    EXPECT_EQ(std::get<RopeParams>(params_from_string(Op::kRope, text)), RopeParams{}) << text;
  }
  for (const char* text : {"{", "}", "{dims=32", "dims=32}", "dims=32,", "dims", "size=3", "dims=x", "{} dims=1"}) {
    EXPECT_THROW(params_from_string(Op::kRope, text), InvalidArgument) << text;
  }
}

/// Nodes in which every parameter differs from its default. tests/graph/ops/infer_test.cpp has rows for every op and
/// parameter.
const char* const kNodes[] = {
    "%y = get_rows(%t, %ids) {ranges=[10:2,40:4]}",
    "%y = set_rows(%c, %x, %ids) {ranges=[3:1,0:0,7:5]}",
    "%y = mul_mat(%x, %x)",
    "%y = mul_mat_id(%e, %e, %ids2) {ranges=[9:2]}",
    "%y = add(%x, %x)",
    "%y = sub(%x, %x)",
    "%y = mul(%x, %x)",
    "%y = div(%x, %x)",
    "%y = scale(%x) {scale=0.1, bias=1e-30}",
    "%y = clamp(%x) {min=-inf, max=3.4028235e+38}",
    "%y = glu(%x, %x) {kind=geglu_quick}",
    "%y = rms_norm(%x) {eps=1e-06}",
    "%y = layer_norm(%x) {eps=0.33333334}",
    "%y = soft_max(%x, %x) {scale=0.088388346}",
    ("%y = rope(%e, %p, %f) {dims=4, mode=halves, base=500000, freq_scale=0.25, ext_factor=1, attn_factor=1.1, "
     "beta_fast=33, beta_slow=2, original_context=8192, truncate=false}"),
    "%y = rope(%e, %p) {dims=2, offset=1}",
    "%y = sum_rows(%x)",
    "%y = argmax(%x)",
    "%y = top_k(%x) {k=2}",
    "%y = attention(%e, %e, %e, %ids, _, %p32) {scale=0.5, softcap=30, causal=true, window=128}",
    "%y = cast(%x) {dtype=bf16}",
    "%y = contiguous(%x)",
    "%y = concat(%x, %x) {axis=1}",
    "%y = repeat(%x) {shape=[8,12,2,1]}",
    "%y = fill() {dtype=i64, shape=[4,0,1,1], value=-7}",
    "%y = reshape(%x) {shape=[2,12,1,1]}",
    "%y = slice(%x) {axis=1, begin=2, length=3}",
    "%y = permute(%x) {axes=[3,1,2,0]}",
    "%y = all_reduce(%x) {rank=3}",
    "%y = all_gather(%x) {rank=1, counts=[1,24,0]}",
    "%y = reduce_scatter(%x) {rank=1, counts=[4,20]}",
    "%y = all_to_all(%x) {rank=1, counts=[0,1,20,4]}",
};

const std::string kLeaves =
    "input %x f32 [4, 6]\n"
    "input %ids i32 [6]\n"
    "input %ids2 i32 [6, 2]\n"
    "input %p i32 [2]\n"
    "input %f f32 [2]\n"
    "input %p32 f32 [2]\n"
    "weight %t q8_0 [32, 6]\n"
    "cache %c f32 [4, 6]\n"
    "weight %e f32 [4, 6, 2]\n";

class RoundTrip : public testing::TestWithParam<const char*> {};

TEST_P(RoundTrip, NodeTextParsesToEqualNode) {
  Graph graph;
  TensorContext weights;
  parse_graph(kLeaves + GetParam() + "\n", graph, weights);
  const std::string line = to_string(*graph.nodes()[0]);
  EXPECT_EQ(line.substr(0, line.find("  #")), GetParam());
  const std::string text = to_string(graph);
  EXPECT_EQ(reprint(text), text);
}
INSTANTIATE_TEST_SUITE_P(Text, RoundTrip, testing::ValuesIn(kNodes));

TEST(Text, EveryEnumeratorRoundTrips) {
  for (int i = 0; i < static_cast<int>(UnaryKind::kCount); ++i) {
    Graph g;
    Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
    const UnaryKind kind = static_cast<UnaryKind>(i);
    unary(g, x, kind);
    Graph back;
    TensorContext weights;
    parse_graph(to_string(g), back, weights);
    EXPECT_EQ(back.nodes()[0]->params, OpParams(UnaryParams{kind})) << to_string(g);
  }
  for (int i = 0; i < static_cast<int>(GluKind::kCount); ++i) {
    Graph g;
    Tensor* x = g.input("x", DType::kF32, {4, 1, 1, 1});
    const GluKind kind = static_cast<GluKind>(i);
    glu(g, x, x, kind);
    Graph back;
    TensorContext weights;
    parse_graph(to_string(g), back, weights);
    EXPECT_EQ(back.nodes()[0]->params, OpParams(GluParams{kind})) << to_string(g);
  }
}

TEST(Text, FloatsRoundTripExactly) {
  for (const float value : {0.1f, 1.0f / 3.0f, 1e-45f, std::numeric_limits<float>::max(), -0.0f, 16777216.0f,
                            std::numeric_limits<float>::infinity()}) {
    Graph g;
    scale(g, g.input("x", DType::kF32, {4, 1, 1, 1}), {value, value});
    Graph back;
    TensorContext weights;
    parse_graph(to_string(g), back, weights);
    EXPECT_EQ(back.nodes()[0]->params, g.nodes()[0]->params) << value;
  }
}

}  // namespace
}  // namespace shoal
