// Every builder of graph/ops/ops.h stores its sources and parameters in the correct fields of the node. The tests
// compare the nodes with golden text.
#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "graph/text.h"

namespace shoal {
namespace {

/// The graph's nodes as text, without comments and leaves.
std::string node_lines(const Graph& graph) {
  std::string text;
  for (const Tensor* node : graph.nodes()) {
    const std::string line = to_string(*node);
    text += line.substr(0, line.find("  #")) + "\n";
  }
  return text;
}

TEST(Builders, SetSourcesAndParametersOfGetRowsAndSetRows) {
  Graph g;
  TensorContext w;
  Tensor* table = w.add("t", DType::kF32, {4, 5, 1, 1});
  Tensor* cache = w.add("c", DType::kF32, {4, 5, 1, 1}, Role::kCache);
  Tensor* ids = g.input("i", DType::kI32, {3, 1, 1, 1});
  Tensor* rows = get_rows(g, table, ids, {}, "a");
  get_rows(g, table, ids, {{{10, 2}, {40, 3}}}, "b");
  set_rows(g, cache, rows, ids, {{{0, 5}}}, "d");
  EXPECT_EQ(node_lines(g),
            "%a = get_rows(%t, %i)\n"
            "%b = get_rows(%t, %i) {ranges=[10:2,40:3]}\n"
            "%d = set_rows(%c, %a, %i) {ranges=[0:5]}\n");
}

TEST(Builders, SetSourcesAndParametersOfSetSlice) {
  Graph g;
  TensorContext w;
  Tensor* cache = w.add("c", DType::kF16, {4, 5, 1, 1}, Role::kCache);
  Tensor* x = g.input("x", DType::kF32, {4, 2, 1, 1});
  Tensor* first = set_slice(g, cache, x, {1, 3, {}}, "a");
  set_slice(g, first, x, {1, 9, {{8, 5}}}, "b");
  EXPECT_EQ(node_lines(g),
            "%a = set_slice(%c, %x) {begin=3}\n"
            "%b = set_slice(%a, %x) {begin=9, ranges=[8:5]}\n");
}

TEST(Builders, SetSourcesAndParametersOfProductsAndElementWiseOps) {
  Graph g;
  TensorContext w;
  Tensor* a = w.add("a", DType::kF32, {4, 4, 2, 1});
  Tensor* b = g.input("b", DType::kF32, {4, 4, 2, 1});
  Tensor* ids = g.input("i", DType::kI32, {4, 2, 1, 1});
  mul_mat(g, a, b, "r0");
  mul_mat_id(g, a, b, ids, {{{7, 2}}}, "r1");
  add(g, a, b, "r2");
  sub(g, a, b, "r3");
  mul(g, a, b, "r4");
  div(g, a, b, "r5");
  scale(g, b, {2.0f, 0.5f}, "r6");
  unary(g, b, UnaryKind::kSilu, "r7");
  clamp(g, b, {-1.0f, 7.0f}, "r8");
  glu(g, b, a, GluKind::kGeglu, "r9");
  glu_fused(g, b, GluKind::kReglu, "r10");
  EXPECT_EQ(node_lines(g),
            "%r0 = mul_mat(%a, %b)\n"
            "%r1 = mul_mat_id(%a, %b, %i) {ranges=[7:2]}\n"
            "%r2 = add(%a, %b)\n"
            "%r3 = sub(%a, %b)\n"
            "%r4 = mul(%a, %b)\n"
            "%r5 = div(%a, %b)\n"
            "%r6 = scale(%b) {scale=2, bias=0.5}\n"
            "%r7 = unary(%b) {kind=silu}\n"
            "%r8 = clamp(%b) {min=-1, max=7}\n"
            "%r9 = glu(%b, %a) {kind=geglu}\n"
            "%r10 = glu(%b) {kind=reglu}\n");
}

TEST(Builders, SetSourcesAndParametersOfNormsRopeAndAttention) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {8, 4, 4, 1});
  Tensor* mask = g.input("m", DType::kF32, {8, 4, 1, 1});
  Tensor* sinks = g.input("s", DType::kF32, {4, 1, 1, 1});
  Tensor* positions = g.input("p", DType::kI32, {4, 1, 1, 1});
  rms_norm(g, x, {1e-6f}, "r0");
  layer_norm(g, x, {}, "r1");
  soft_max(g, x, mask, sinks, {0.125f}, "r2");
  soft_max(g, x, nullptr, sinks, {}, "r3");
  rope(g, x, positions, sinks, {.dims = 8, .mode = RopeMode::kHalves, .base = 5e5f, .original_context = 4096}, "r4");
  sum_rows(g, x, "r5");
  argmax(g, x, "r6");
  top_k(g, x, 3, "r7");
  Tensor* kv = g.input("k", DType::kF16, {8, 9, 2, 1});
  Tensor* scores = g.input("am", DType::kF16, {9, 4, 1, 1});
  attention(g, x, kv, kv, positions, scores, sinks, {0.5f, 30.0f, true, 16}, "r9");
  attention(g, x, kv, kv, nullptr, scores, nullptr, {}, "r10");
  Tensor* parts = attention(g, x, kv, kv, nullptr, nullptr, nullptr, {.parts = 2}, "r11");
  merge_attention(g, parts, g.input("l", DType::kF32, {2, parts->shape[1], parts->shape[2], 1}), "r12");
  EXPECT_EQ(node_lines(g),
            "%r0 = rms_norm(%x) {eps=1e-06}\n"
            "%r1 = layer_norm(%x)\n"
            "%r2 = soft_max(%x, %m, %s) {scale=0.125}\n"
            "%r3 = soft_max(%x, _, %s)\n"
            "%r4 = rope(%x, %p, %s) {dims=8, mode=halves, base=500000, original_context=4096}\n"
            "%r5 = sum_rows(%x)\n"
            "%r6 = argmax(%x)\n"
            "%r7 = top_k(%x) {k=3}\n"
            "%r9 = attention(%x, %k, %k, %p, %am, %s) {scale=0.5, softcap=30, causal=true, window=16}\n"
            "%r10 = attention(%x, %k, %k, _, %am)\n"
            "%r11 = attention(%x, %k, %k) {parts=2}\n"
            "%r12 = merge_attention(%r11, %l)\n");
}

TEST(Builders, SetSourcesAndParametersOfComparisonsAndImages) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {8, 4, 3, 1});
  Tensor* y = g.input("y", DType::kF32, {8, 1, 1, 1});
  Tensor* c = compare(g, x, y, CompareKind::kLessEqual, "r0");
  where(g, c, y, x, "r1");
  cumsum(g, x, "r2");
  pool_2d(g, x, {PoolKind::kAverage, {3, 2}, {2, 1}, {1, 0, 0, 1}, true}, "r3");
  pad(g, x, {{1, 0, 0, 0}, {0, 3, 0, 0}, PadMode::kReflect, 0.5f}, "r4");
  upsample(g, x, {{16, 9}, UpsampleMode::kBilinear}, "r5");
  EXPECT_EQ(node_lines(g),
            "%r0 = compare(%x, %y) {kind=le}\n"
            "%r1 = where(%r0, %y, %x)\n"
            "%r2 = cumsum(%x)\n"
            "%r3 = pool_2d(%x) {kind=average, kernel=[3,2], stride=[2,1], pads=[1,0,0,1], count_pads=true}\n"
            "%r4 = pad(%x) {before=[1,0,0,0], after=[0,3,0,0], mode=reflect, value=0.5}\n"
            "%r5 = upsample(%x) {size=[16,9], mode=bilinear}\n");
}

TEST(Builders, SetSourcesAndParametersOfOpsWithState) {
  Graph g;
  const auto f32 = [&](const char* name, Shape shape) { return g.input(name, DType::kF32, shape); };
  Tensor* positions = g.input("p", DType::kI32, {3, 1, 1, 1});
  causal_conv(g, f32("x", {8, 3, 1, 1}), f32("w", {4, 8, 1, 1}), f32("c", {8, 3, 1, 1}), positions, "r0");
  Tensor* state = f32("s", {8, 8, 4, 1});
  gated_delta(g, f32("q", {8, 2, 3, 1}), f32("k", {8, 2, 3, 1}), f32("v", {8, 4, 3, 1}), f32("a", {4, 3, 1, 1}),
              f32("b", {4, 3, 1, 1}), state, positions, {true}, "r1");
  EXPECT_EQ(node_lines(g),
            "%r0 = causal_conv(%x, %w, %c, %p)\n"
            "%r1 = gated_delta(%q, %k, %v, %a, %b, %s, %p) {tiled=true}\n");
}

TEST(Builders, SetSourcesAndParametersOfConvolutions) {
  Graph g;
  const auto f32 = [&](const char* name, Shape shape) { return g.input(name, DType::kF32, shape); };
  Tensor* x = f32("x", {9, 8, 4, 1});
  conv_2d(g, f32("w", {3, 2, 2, 6}), x, {{2, 1}, {1, 2, 3, 4}, {1, 5}, 2}, "r0");
  conv_2d(g, f32("d", {1, 1, 1, 4}), x, {.groups = 4}, "r1");
  conv_transpose_2d(g, f32("t", {3, 2, 3, 4}), x, {{2, 1}, {1, 2, 3, 4}, {1, 5}, {1, 0}, 2}, "r2");
  conv_transpose_2d(g, f32("p", {1, 1, 3, 4}), x, {}, "r3");
  EXPECT_EQ(node_lines(g),
            "%r0 = conv_2d(%w, %x) {stride=[2,1], pads=[1,2,3,4], dilation=[1,5], groups=2}\n"
            "%r1 = conv_2d(%d, %x) {groups=4}\n"
            "%r2 = conv_transpose_2d(%t, %x) {stride=[2,1], pads=[1,2,3,4], dilation=[1,5], output_pad=[1,0], "
            "groups=2}\n"
            "%r3 = conv_transpose_2d(%p, %x)\n");
}

TEST(Builders, ComposeConv1dAndGroupNorm) {
  Graph g;
  Tensor* signal = g.input("x", DType::kF32, {9, 4, 3, 1});
  conv_1d(g, g.input("w", DType::kF32, {3, 2, 6, 1}), signal, {.stride = {2, 1}, .pads = {1, 0, 0, 0}, .groups = 2},
          "y");
  group_norm(g, g.input("i", DType::kF32, {3, 2, 6, 5}), 3, {1e-6f}, "z");
  EXPECT_EQ(node_lines(g),
            "%reshape_0 = reshape(%w) {shape=[3,1,2,6]}\n"
            "%reshape_1 = reshape(%x) {shape=[9,1,4,3]}\n"
            "%conv_2d_2 = conv_2d(%reshape_0, %reshape_1) {stride=[2,1], pads=[1,0,0,0], groups=2}\n"
            "%y = reshape(%conv_2d_2) {shape=[4,6,3,1]}\n"
            "%reshape_4 = reshape(%i) {shape=[12,3,5,1]}\n"
            "%layer_norm_5 = layer_norm(%reshape_4) {eps=1e-06}\n"
            "%z = reshape(%layer_norm_5) {shape=[3,2,6,5]}\n");
  EXPECT_THROW(group_norm(g, g.input("j", DType::kF32, {3, 2, 6, 5}), 4, {}), InvalidArgument);
  EXPECT_THROW(conv_1d(g, signal, g.input("k", DType::kF32, {9, 4, 3, 2}), {}), InvalidArgument);
}

TEST(Builders, ConvolutionsOfSignalsIgnoreParametersOfAxis1) {
  Graph g;
  Tensor* signal = g.input("x", DType::kF32, {9, 4, 3, 1});
  conv_1d(g, g.input("w", DType::kF32, {3, 4, 6, 1}), signal, {{2, 5}, {1, 0, 3, 4}, {1, 6}}, "y");
  conv_transpose_1d(g, g.input("t", DType::kF32, {3, 2, 4, 1}), signal, {{2, 5}, {1, 0, 3, 4}, {1, 6}, {1, 4}}, "z");
  EXPECT_EQ(node_lines(g),
            "%reshape_0 = reshape(%w) {shape=[3,1,4,6]}\n"
            "%reshape_1 = reshape(%x) {shape=[9,1,4,3]}\n"
            "%conv_2d_2 = conv_2d(%reshape_0, %reshape_1) {stride=[2,1], pads=[1,0,0,0]}\n"
            "%y = reshape(%conv_2d_2) {shape=[4,6,3,1]}\n"
            "%reshape_4 = reshape(%t) {shape=[3,1,2,4]}\n"
            "%reshape_5 = reshape(%x) {shape=[9,1,4,3]}\n"
            "%conv_transpose_2d_6 = conv_transpose_2d(%reshape_4, %reshape_5) {stride=[2,1], pads=[1,0,0,0], "
            "output_pad=[1,0]}\n"
            "%z = reshape(%conv_transpose_2d_6) {shape=[19,2,3,1]}\n");
}

TEST(Builders, SetSourcesAndParametersOfCopiesAndViews) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {8, 4, 1, 1});
  cast(g, x, DType::kBF16, "r0");
  contiguous(g, x, "r1");
  concat(g, {x, x, x}, 1, "r2");
  repeat(g, x, {8, 4, 3, 1}, "r3");
  fill(g, {DType::kI32, {5, 1, 1, 1}, -1.0f}, "r4");
  reshape(g, x, {-1, 2, 2, 1}, "r5");
  slice(g, x, {1, 1, 2}, "r6");
  permute(g, x, {2, 1, 0, 3}, "r7");
  transpose(g, x, "r8");
  slice(g, x, {0, 1, 2, 3}, "r9");
  reshard(g, x, "axis 1 [3:{0} 1:{0,1}]", "r10");
  EXPECT_EQ(node_lines(g),
            "%r0 = cast(%x) {dtype=bf16}\n"
            "%r1 = contiguous(%x)\n"
            "%r2 = concat(%x, %x, %x) {axis=1}\n"
            "%r3 = repeat(%x) {shape=[8,4,3,1]}\n"
            "%r4 = fill() {dtype=i32, shape=[5,1,1,1], value=-1}\n"
            "%r5 = reshape(%x) {shape=[8,2,2,1]}\n"
            "%r6 = slice(%x) {axis=1, begin=1, length=2}\n"
            "%r7 = permute(%x) {axes=[2,1,0,3]}\n"
            "%r8 = permute(%x) {axes=[1,0,2,3]}\n"
            "%r9 = slice(%x) {begin=1, length=2, step=3}\n"
            "%r10 = reshard(%x) {layout=\"axis 1 [3:{0} 1:{0,1}]\"}\n");
}

TEST(Builders, SetSourcesAndParametersOfCollectives) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {6, 1, 1, 1});
  collective(g, Collective::kAllReduce, x, {.rank = 1, .counts = {}}, "r0");
  collective(g, Collective::kAllGather, x, {.rank = 1, .counts = {2, 6}}, "r1");
  collective(g, Collective::kReduceScatter, x, {.rank = 1, .counts = {2, 4}}, "r2");
  collective(g, Collective::kAllToAll, x, {.rank = 0, .counts = {2, 4, 1, 3}}, "r3");
  EXPECT_EQ(node_lines(g),
            "%r0 = all_reduce(%x) {rank=1}\n"
            "%r1 = all_gather(%x) {rank=1, counts=[2,6]}\n"
            "%r2 = reduce_scatter(%x) {rank=1, counts=[2,4]}\n"
            "%r3 = all_to_all(%x) {counts=[2,4,1,3]}\n");
}

}  // namespace
}  // namespace shoal
