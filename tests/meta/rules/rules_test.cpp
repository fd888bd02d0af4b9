// Compares the rule of every op with golden text.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "graph/ops/ops.h"
#include "meta/rules/rule.h"

namespace shoal::meta {
namespace {

class Rules : public testing::Test {
 protected:
  Tensor* f32(Shape shape) { return in(DType::kF32, shape); }
  Tensor* i32(Shape shape) { return in(DType::kI32, shape); }
  Tensor* in(DType dtype, Shape shape) { return g.input(fmt::format("in{}", g.inputs().size()), dtype, shape); }
  static std::string rule(const Tensor* node) {
    const auto found = rule_for(*node);
    return found ? to_string(*found) : "none";
  }

  Graph g;
  TensorContext weights;
};

TEST_F(Rules, RulesOfGetRowsAndSetRowsMatchGoldenText) {
  EXPECT_EQ(rule(get_rows(g, f32({4, 9, 2, 3}), i32({5, 2, 3, 1}))), "x [r] c d, i c d -> x i c d | linear 0");
  EXPECT_EQ(rule(get_rows(g, in(DType::kQ8_0, {32, 9, 1, 1}), i32({5, 1, 1, 1}))), "x [r] c d, i c d -> x i c d");
  Tensor* cache = weights.add("cache", DType::kF16, {4, 9, 2, 1}, Role::kCache);
  EXPECT_EQ(rule(set_rows(g, cache, f32({4, 3, 2, 1}), i32({3, 1, 1, 1}))), "x [r] h z, x (i) h z, (i) -> x [r] h z");
  Tensor* second = weights.add("second", DType::kF16, {4, 9, 2, 1}, Role::kCache);
  EXPECT_EQ(rule(set_rows(g, second, f32({4, 3, 2, 1}), i32({3, 2, 1, 1}))),
            "x [r] h z, x (i) h z, (i) h -> x [r] h z");
}

TEST_F(Rules, SetSliceRuleSelectsIndicesOfTheWrittenAxis) {
  Tensor* cache = weights.add("cache", DType::kF16, {4, 9, 2, 1}, Role::kCache);
  EXPECT_EQ(rule(set_slice(g, cache, f32({4, 3, 2, 1}), {1, 5, {}})), "a [b] c d, a (x) c d -> a [b] c d");
  Tensor* other = weights.add("other", DType::kQ8_0, {64, 9, 2, 1}, Role::kCache);
  EXPECT_EQ(rule(set_slice(g, other, f32({32, 9, 2, 1}), {0, 0, {}})), "[a] b c d, (x) b c d -> [a] b c d");
}

TEST_F(Rules, MulMatRuleMatchesGoldenText) {
  EXPECT_EQ(rule(mul_mat(g, f32({6, 5, 1, 1}), f32({6, 3, 1, 1}))), "k m c d, k n c d -> m n c d | sum k | linear 0 1");
  EXPECT_EQ(rule(mul_mat(g, f32({6, 5, 1, 1}), f32({6, 3, 1, 1}), {DType::kF16})),
            "k m c d, k n c d -> m n c d | sum k");
  EXPECT_EQ(rule(mul_mat(g, in(DType::kQ4_K, {256, 5, 1, 1}), f32({256, 3, 4, 2}))),
            "k m, k n c d -> m n c d | sum k | linear 1");
  EXPECT_EQ(rule(mul_mat(g, f32({6, 5, 2, 1}), f32({6, 3, 4, 1}))),
            "k m c/2 d, k n c d -> m n c d | sum k | linear 0 1");
  EXPECT_EQ(rule(mul_mat(g, f32({6, 5, 2, 1}), f32({6, 3, 0, 1}))),
            "k m (e) d, k n c d -> m n c d | sum k | linear 0 1");
}

TEST_F(Rules, MulMatIdRuleMatchesGoldenText) {
  EXPECT_EQ(rule(mul_mat_id(g, f32({6, 5, 8, 1}), f32({6, 2, 3, 1}), i32({2, 3, 1, 1}))),
            "k m [e], k u t, u t -> m u t | sum k | linear 0 1");
  EXPECT_EQ(rule(mul_mat_id(g, in(DType::kQ8_0, {32, 5, 8, 1}), f32({32, 1, 3, 1}), i32({2, 3, 1, 1}))),
            "k m [e], k 1 t, u t -> m u t | sum k | linear 1");
}

TEST_F(Rules, RulesOfElementWiseOpsMatchGoldenText) {
  Tensor* x = f32({4, 3, 1, 2});
  EXPECT_EQ(rule(add(g, x, f32({4, 1, 1, 1}))), "a b c d, a 1 c -> a b c d | linear 0+1");
  EXPECT_EQ(rule(sub(g, x, x)), "a b c d, a b c d -> a b c d | linear 0+1");
  EXPECT_EQ(rule(mul(g, f32({1, 3, 1, 1}), x)), "1 b c, a b c d -> a b c d | linear 0 1");
  EXPECT_EQ(rule(div(g, x, x)), "a b c d, a b c d -> a b c d | linear 0");
  EXPECT_EQ(rule(scale(g, x, {2.0f, 0.0f})), "a b c d -> a b c d | linear 0");
  EXPECT_EQ(rule(scale(g, x, {2.0f, 1.0f})), "a b c d -> a b c d");
  EXPECT_EQ(rule(unary(g, x, UnaryKind::kNeg)), "a b c d -> a b c d | linear 0");
  EXPECT_EQ(rule(unary(g, x, UnaryKind::kSilu)), "a b c d -> a b c d");
  EXPECT_EQ(rule(clamp(g, x, {-1.0f, 1.0f})), "a b c d -> a b c d");
  EXPECT_EQ(rule(glu(g, x, x, GluKind::kSwiglu)), "a b c d, a b c d -> a b c d | linear 1");
  EXPECT_EQ(rule(glu_fused(g, x, GluKind::kSwiglu)), "2*a b c d, - -> a b c d");
}

TEST_F(Rules, RulesOfOpsAlongRowsMatchGoldenText) {
  Tensor* x = f32({4, 3, 2, 5});
  EXPECT_EQ(rule(rms_norm(g, x, {})), "(a) b c d -> (a) b c d");
  EXPECT_EQ(rule(layer_norm(g, x, {})), "(a) b c d -> (a) b c d");
  EXPECT_EQ(rule(soft_max(g, x, nullptr, nullptr, {})), "(s) t h z, -, - -> (s) t h z");
  EXPECT_EQ(rule(soft_max(g, x, f32({4, 3, 1, 5}), f32({2, 1, 1, 1}), {})), "(s) t h z, (s) t 1 z, h -> (s) t h z");
  EXPECT_EQ(rule(rope(g, x, i32({2, 1, 1, 1}), nullptr, {.dims = 4})), "(d) h t z, t, - -> (d) h t z | linear 0");
  EXPECT_EQ(rule(rope(g, x, i32({2, 1, 1, 1}), f32({2, 1, 1, 1}), {.dims = 4})),
            "(d) h t z, t, (f) -> (d) h t z | linear 0");
  EXPECT_EQ(rule(sum_rows(g, x)), "a b c d -> 1 b c d | sum a | linear 0");
  EXPECT_EQ(rule(argmax(g, x)), "(a) b c d -> 1 b c d");
  EXPECT_EQ(rule(top_k(g, x, 2)), "(a) b c d -> (k) b c d");
}

TEST_F(Rules, RulesOfComparisonsAndImagesMatchGoldenText) {
  Tensor* x = f32({4, 3, 2, 5});
  EXPECT_EQ(rule(compare(g, x, f32({1, 3, 1, 5}), CompareKind::kLess)), "a b c d, 1 b 1 d -> a b c d");
  EXPECT_EQ(rule(where(g, i32({4, 1, 2, 1}), x, f32({1, 1, 1, 1}))), "a 1 c, a b c d, 1 -> a b c d | linear 1+2");
  EXPECT_EQ(rule(cumsum(g, x)), "(a) b c d -> (a) b c d | linear 0");
  EXPECT_EQ(rule(pool_2d(g, x, {PoolKind::kMax, {2, 2}})), "(a) (b) c d -> (w) (x) c d");
  EXPECT_EQ(rule(pool_2d(g, x, {PoolKind::kAverage, {1, 3}})), "a (b) c d -> a (x) c d | linear 0");
  EXPECT_EQ(rule(pad(g, x, {{0, 1, 0, 0}, {0, 0, 2, 0}})), "a (b) (c) d -> a (x) (y) d | linear 0");
  EXPECT_EQ(rule(pad(g, x, {.after = {1, 0, 0, 0}, .value = 1})), "(a) b c d -> (w) b c d");
  EXPECT_EQ(rule(pad(g, x, {.after = {1, 0, 0, 0}, .mode = PadMode::kEdge, .value = 1})),
            "(a) b c d -> (w) b c d | linear 0");
  EXPECT_EQ(rule(upsample(g, x, {{8, 6}})), "(a) (b) c d -> (w) (x) c d | linear 0");
}

TEST_F(Rules, AttentionRuleMatchesGoldenText) {
  Tensor* q = f32({8, 3, 4, 2});
  Tensor* k = f32({8, 5, 2, 2});
  EXPECT_EQ(rule(attention(g, q, k, f32({6, 5, 2, 2}), i32({3, 1, 1, 1}), nullptr, nullptr, {})),
            "(d) t h z, (d) (s) h/2 z, (e) (s) h/2 z, t, -, -, -, - -> (e) h t z | linear 2");
  EXPECT_EQ(rule(attention(g, q, f32({8, 5, 4, 2}), in(DType::kQ8_0, {32, 5, 4, 2}), nullptr, f32({5, 3, 1, 1}),
                           f32({4, 1, 1, 1}), {})),
            "(d) t h z, (d) (s) h z, (e) (s) h z, -, (s) t, h, -, - -> (e) h t z");
  EXPECT_EQ(rule(paged_attention(g, f32({8, 3, 4, 1}), f32({8, 64, 2, 1}), f32({6, 64, 2, 1}), i32({3, 1, 1, 1}),
                                 nullptr, i32({2, 2, 1, 1}), i32({3, 1, 1, 1}), {.causal = true, .page = 32})),
            "(d) t h z, (d) (s) h/2 z, (e) (s) h/2 z, t, -, -, (w) (y), t -> (e) h t z | linear 2");
}

TEST_F(Rules, RulesOfOpsWithStateMatchGoldenText) {
  Tensor* positions = i32({3, 1, 1, 1});
  EXPECT_EQ(rule(causal_conv(g, f32({8, 3, 1, 1}), f32({4, 8, 1, 1}), f32({8, 3, 1, 1}), positions)),
            "c (t), (k) c, c (s), (t), -, - -> c (n)");
  const auto delta = [&](int64_t key_heads, int64_t heads, bool tiled) {
    Tensor* keys = f32({8, key_heads, 3, 1});
    Tensor* shares = f32({heads, 3, 1, 1});
    return rule(
        gated_delta(g, keys, keys, f32({8, heads, 3, 1}), shares, shares, f32({8, 8, heads, 1}), positions, {tiled}));
  };
  EXPECT_EQ(delta(2, 6, false), "(d) h/3 (t), (d) h/3 (t), (d) h (t), h (t), h (t), (d) (e) h, (t), -, - -> (d) (n) h");
  EXPECT_EQ(delta(2, 6, true),
            "(d) h (t), (d) h (t), (d) 3*h (t), 3*h (t), 3*h (t), (d) (e) 3*h, (t), -, - -> (d) (n) 3*h");
  for (const bool tiled : {false, true}) {
    EXPECT_EQ(delta(4, 4, tiled), "(d) h (t), (d) h (t), (d) h (t), h (t), h (t), (d) (e) h, (t), -, - -> (d) (n) h");
    EXPECT_EQ(delta(4, 0, tiled),
              "(d) (g) (t), (d) (g) (t), (d) h (t), h (t), h (t), (d) (e) h, (t), -, - -> (d) (n) h");
  }
  // A batch with two sequences. The state has three slots.
  EXPECT_EQ(rule(causal_conv(g, f32({8, 3, 1, 1}), f32({4, 8, 1, 1}), f32({8, 9, 1, 1}), positions, {},
                             {i32({3, 1, 1, 1}), i32({2, 1, 1, 1})})),
            "c (t), (k) c, c (s), (t), (t), (y) -> c (n)");
}

TEST_F(Rules, RulesOfConvolutionsMatchGoldenText) {
  Tensor* x = f32({9, 8, 4, 2});
  EXPECT_EQ(rule(conv_2d(g, f32({3, 3, 4, 6}), x, {})), "(u) (v) i o, (x) (y) i n -> (p) (q) o n | sum i | linear 0 1");
  EXPECT_EQ(rule(conv_2d(g, f32({1, 1, 4, 6}), x, {})), "(u) (v) i o, x y i n -> x y o n | sum i | linear 0 1");
  EXPECT_EQ(rule(conv_2d(g, f32({1, 1, 4, 6}), x, {.stride = {2, 1}, .pads = {0, 0, 1, 0}})),
            "(u) (v) i o, (x) (y) i n -> (p) (q) o n | sum i | linear 0 1");
  EXPECT_EQ(rule(conv_2d(g, f32({3, 1, 1, 4}), x, {.groups = 4})),
            "(u) (v) (i) o, (x) y o n -> (p) y o n | linear 0 1");
  EXPECT_EQ(rule(conv_2d(g, f32({3, 1, 1, 8}), x, {.groups = 4})),
            "(u) (v) (i) o, (x) y o/2 n -> (p) y o n | linear 0 1");
  EXPECT_EQ(rule(conv_2d(g, f32({3, 3, 2, 4}), x, {.groups = 2})),
            "(u) (v) (i) (o), (x) (y) (c) n -> (p) (q) (o) n | linear 0 1");
  EXPECT_EQ(rule(conv_transpose_2d(g, f32({3, 3, 6, 4}), x, {})),
            "(u) (v) o i, (x) (y) i n -> (p) (q) o n | sum i | linear 0 1");
  EXPECT_EQ(rule(conv_transpose_2d(g, f32({3, 3, 1, 4}), x, {.groups = 4})),
            "(u) (v) (o) i, (x) (y) i n -> (p) (q) i n | linear 0 1");
  EXPECT_EQ(rule(conv_transpose_2d(g, f32({3, 3, 2, 4}), x, {.groups = 4})),
            "(u) (v) (o) (i), (x) (y) (i) n -> (p) (q) (c) n | linear 0 1");
}

TEST_F(Rules, RulesOfDataMovementMatchGoldenText) {
  Tensor* x = f32({4, 3, 1, 2});
  EXPECT_EQ(rule(cast(g, x, DType::kF32)), "a b c d -> a b c d | linear 0");
  EXPECT_EQ(rule(cast(g, in(DType::kBF16, {4, 1, 1, 1}), DType::kF32)), "a b c d -> a b c d | linear 0");
  EXPECT_EQ(rule(cast(g, x, DType::kF16)), "a b c d -> a b c d");
  EXPECT_EQ(rule(contiguous(g, x)), "a b c d -> a b c d | linear 0");
  EXPECT_EQ(rule(repeat(g, x, {8, 3, 5, 2})), "a b c d -> 2*a b 5*c d | linear 0");
  EXPECT_EQ(rule(repeat(g, x, {0, 3, 1, 2})), "(a) b c d -> (w) b c d | linear 0");
}

TEST_F(Rules, ViewsConcatAndFillHaveNoRule) {
  Tensor* x = f32({4, 3, 1, 2});
  EXPECT_EQ(rule(reshape(g, x, {24, 1, 1, 1})), "none");
  EXPECT_EQ(rule(slice(g, x, {0, 1, 2})), "none");
  EXPECT_EQ(rule(transpose(g, x)), "none");
  EXPECT_EQ(rule(concat(g, {x, x}, 1)), "none");
  EXPECT_EQ(rule(fill(g, {})), "none");
}

TEST_F(Rules, FactorUnitsMatchQuantisationBlocks) {
  const auto unit = [](const Tensor* node, char letter) {
    const auto rule = rule_for(*node);
    return rule->factors[rule->find(letter)].unit;
  };
  Tensor* product = mul_mat(g, in(DType::kQ4_K, {512, 5, 1, 1}), f32({512, 3, 1, 1}));
  EXPECT_EQ(unit(product, 'k'), 256);
  EXPECT_EQ(unit(product, 'm'), 1);
  EXPECT_EQ(unit(cast(g, f32({64, 1, 1, 1}), DType::kQ8_0), 'a'), 32);
  EXPECT_EQ(unit(get_rows(g, in(DType::kQ8_0, {64, 9, 1, 1}), i32({5, 1, 1, 1})), 'x'), 32);
  Tensor* cache = weights.add("cache", DType::kQ8_0, {64, 9, 2, 1}, Role::kCache);
  EXPECT_EQ(unit(set_rows(g, cache, f32({64, 3, 2, 1}), i32({3, 1, 1, 1})), 'x'), 32);
  EXPECT_EQ(unit(repeat(g, in(DType::kQ8_0, {64, 1, 1, 1}), {128, 1, 1, 1}), 'a'), 32);
}

}  // namespace
}  // namespace shoal::meta
