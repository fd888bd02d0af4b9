#include "meta/rules/rule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "tests/meta/layouts.h"

namespace shoal::meta {
namespace {

class RuleFactors : public testing::Test {
 protected:
  Tensor* f32(Shape shape) { return g.input(fmt::format("in{}", g.inputs().size()), DType::kF32, shape); }
  Tensor* i32(Shape shape) { return g.input(fmt::format("in{}", g.inputs().size()), DType::kI32, shape); }
  Graph g;
};

TEST_F(RuleFactors, AreParsedWithTheirTerms) {
  Tensor* node = mul_mat(g, f32({6, 5, 2, 1}), f32({6, 3, 4, 1}));
  const Rule rule = parse_rule("k m c/2 d, k n c d -> m n c d | sum k | linear 0 1", *node);
  ASSERT_EQ(rule.factors.size(), 5u);
  const Factor& k = rule.factors[rule.find('k')];
  EXPECT_EQ(k.kind, FactorKind::kSummed);
  EXPECT_EQ(k.length, 6);
  const Factor& c = rule.factors[rule.find('c')];
  EXPECT_EQ(c.kind, FactorKind::kParallel);
  EXPECT_EQ(c.length, 4);
  EXPECT_EQ(rule.sources[0].axes[2], (AxisTerm{rule.find('c'), 2, 1}));
  EXPECT_EQ(Rule::axis_of(rule.sources[1], rule.find('n')), 1);
  EXPECT_EQ(Rule::axis_of(rule.sources[0], rule.find('n')), -1);
  EXPECT_THAT(rule.linear, testing::ElementsAre(testing::ElementsAre(0), testing::ElementsAre(1)));
  EXPECT_EQ(rule.find('z'), -1);
}

TEST_F(RuleFactors, NormalFormRoundTrips) {
  Tensor* node = add(g, f32({4, 3, 1, 1}), f32({4, 1, 1, 1}));
  const std::string text = to_string(parse_rule("a b 1 1, a 1 1 1->a b 1 1|linear 0+1", *node));
  EXPECT_EQ(text, "a b, a -> a b | linear 0+1");
  EXPECT_EQ(to_string(parse_rule(text, *node)), text);
}

TEST_F(RuleFactors, RefuseMalformedText) {
  const Tensor& node = *add(g, f32({4, 3, 1, 1}), f32({4, 1, 1, 1}));
  for (const char* bad : {
           "a b, a",                       // there is no result
           "a b -> a b",                   // one source is missing
           "a b, a, a -> a b",             // there is one source too many
           "a b, - -> a b",                // '-' stands for a source that exists
           "a b, b -> a b",                // `b` has different lengths
           "a 1, a -> a b",                // '1' stands for an axis of another length
           "a a, a -> a b",                // `a` is used twice in an operand
           "a b, (a) -> a b",              // `a` is marked as whole in only one operand
           "a c, a -> a b",                // `c` is neither in the result nor summed
           "a b, a -> a b | sum b",        // `b` is summed and in the result
           "a b, a -> a b | sum q",        // there is no factor `q`
           "a b, a -> a b | linear 2",     // there is no source 2
           "a b, a -> a b | linear",       // the clause is empty
           "a b, a -> a b | quadratic 0",  // the clause is unknown
           "a b, a 1 1 1 1 -> a b",        // an operand has five axes
           "A b, A -> A b",                // `A` is not a lower-case letter
           "3*a b, 3*a -> 3*a b",          // 3 does not divide 4
           "a (b, a -> a (b",              // the bracket is not closed
           "x*a b, a -> a b",              // `x` is not a number
           "a [b]/1 2, a -> a [b]",        // the term 2 has no letter
       }) {
    EXPECT_THROW(parse_rule(bad, node), InvalidArgument) << bad;
  }
  try {
    parse_rule("a b, b -> a b", node);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("a b, b -> a b"), testing::HasSubstr("add")));
  }
}

TEST_F(RuleFactors, MatchMulMatExampleOfHeader) {
  const Tensor& node = *mul_mat(g, f32({256, 768, 1, 1}), f32({256, 4, 1, 1}));
  const Rule rule = *rule_for(node);
  const int m = rule.find('m'), k = rule.find('k');
  const Partition rows = parse_partition(2, "512:{0} 256:{1}");
  EXPECT_EQ(operand_layout(rule, m, rows, rule.sources[0]), split(1, 2, "512:{0} 256:{1}"));
  EXPECT_EQ(operand_layout(rule, m, rows, rule.sources[1]), Layout::mirrored());
  EXPECT_EQ(result_layout(rule, m, rows), split(0, 2, "512:{0} 256:{1}"));
  const Partition columns = Partition::even(2, 256);
  EXPECT_EQ(operand_layout(rule, k, columns, rule.sources[0]), Layout::split(0, columns));
  EXPECT_EQ(operand_layout(rule, k, columns, rule.sources[1]), Layout::split(0, columns));
  EXPECT_EQ(result_layout(rule, k, columns), Layout::partial());
  EXPECT_EQ(result_layout(rule, k, parse_partition(2, "128:{0} 128:{0,1}")), std::nullopt);
}

TEST_F(RuleFactors, KvGroupsAreSplitWithTheirHeads) {
  const Tensor& node =
      *attention(g, f32({8, 3, 8, 1}), f32({8, 5, 4, 1}), f32({8, 5, 4, 1}), nullptr, nullptr, nullptr, {});
  const Rule rule = *rule_for(node);
  const int h = rule.find('h');
  const Partition heads = Partition::even(8, 8);
  EXPECT_EQ(operand_layout(rule, h, heads, rule.sources[1]), split(2, 8, "1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}"));
  EXPECT_EQ(result_layout(rule, h, heads), Layout::split(1, heads));
  const auto back = factor_split(rule, rule.sources[1], split(2, 2, "3:{0} 1:{1}"));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->factor, h);
  EXPECT_EQ(back->partition, parse_partition(2, "6:{0} 2:{1}"));
  // The cut is after three query heads. A KV group has two query heads, so the cut is inside a group.
  EXPECT_EQ(operand_layout(rule, h, parse_partition(2, "3:{0} 5:{1}"), rule.sources[1]), std::nullopt);
}

TEST_F(RuleFactors, RepetitionsOfFactorHaveEqualSplits) {
  const Tensor& node = *glu_fused(g, f32({12, 2, 1, 1}), GluKind::kSwiglu);
  const Rule rule = *rule_for(node);
  const auto from_segments = factor_split(rule, rule.sources[0], split(0, 2, "4:{0} 2:{1} 4:{0} 2:{1}"));
  ASSERT_TRUE(from_segments);
  EXPECT_EQ(from_segments->partition, parse_partition(2, "4:{0} 2:{1}"));
  EXPECT_EQ(result_layout(rule, from_segments->factor, from_segments->partition), split(0, 2, "4:{0} 2:{1}"));
  EXPECT_EQ(operand_layout(rule, from_segments->factor, from_segments->partition, rule.sources[0]),
            split(0, 2, "4:{0} 2:{1} 4:{0} 2:{1}"));
  // In this split, each rank has one contiguous half of the axis instead of a part of each segment.
  EXPECT_FALSE(factor_split(rule, rule.sources[0], split(0, 2, "6:{0} 6:{1}")));
}

TEST_F(RuleFactors, SplitsDoNotCutQuantisationBlocks) {
  Tensor* weight = g.input("w", DType::kQ8_0, {96, 5, 1, 1});
  const Rule rule = *rule_for(*mul_mat(g, weight, f32({96, 4, 1, 1})));
  const int k = rule.find('k');
  EXPECT_EQ(operand_layout(rule, k, parse_partition(2, "48:{0} 48:{1}"), rule.sources[1]), std::nullopt);
  EXPECT_EQ(operand_layout(rule, k, parse_partition(2, "64:{0} 32:{1}"), rule.sources[1]),
            split(0, 2, "64:{0} 32:{1}"));
  EXPECT_FALSE(factor_split(rule, rule.sources[1], split(0, 2, "48:{0} 48:{1}")));
}

TEST_F(RuleFactors, WholeAndAbsentFactorsAreNotSplit) {
  const Rule norm = *rule_for(*rms_norm(g, f32({12, 2, 1, 1}), {}));
  EXPECT_FALSE(factor_split(norm, norm.sources[0], split(0, 2, "6:{0} 6:{1}")));
  EXPECT_FALSE(operand_layout(norm, norm.find('a'), Partition::even(2, 12), norm.sources[0]));
  EXPECT_FALSE(result_layout(norm, norm.find('a'), Partition::even(2, 12)));
  EXPECT_FALSE(factor_split(norm, norm.sources[0], Layout::mirrored()));
  EXPECT_FALSE(factor_split(norm, norm.sources[0], Layout::partial()));
  const Rule sum = *rule_for(*add(g, f32({4, 3, 1, 1}), f32({1, 3, 1, 1})));
  EXPECT_FALSE(factor_split(sum, sum.sources[1], split(0, 2, "1:{0}")));
}

TEST_F(RuleFactors, AxisOfLengthOneMayBeSplit) {
  const Rule rule = *rule_for(*scale(g, f32({4, 1, 1, 1}), {2.0f, 0.0f}));
  const auto one = factor_split(rule, rule.sources[0], split(1, 3, "1:{2}"));
  ASSERT_TRUE(one);
  EXPECT_EQ(result_layout(rule, one->factor, one->partition), split(1, 3, "1:{2}"));
}

std::vector<IndexRange> ranges(const Tensor& node, char letter, const Partition& partition, int device) {
  const Rule rule = *rule_for(node);
  return std::get<SelectParams>(local_params(node, rule, rule.find(letter), partition, device)).ranges;
}

TEST_F(RuleFactors, SelectedRangesFollowPartition) {
  Tensor* table = f32({4, 9, 1, 1});
  const Tensor& all = *get_rows(g, table, i32({5, 1, 1, 1}));
  const Partition rows = parse_partition(3, "3:{0} 4:{1} 2:{0}");
  EXPECT_THAT(ranges(all, 'r', rows, 0), testing::ElementsAre(IndexRange{0, 3}, IndexRange{7, 2}));
  EXPECT_THAT(ranges(all, 'r', rows, 1), testing::ElementsAre(IndexRange{3, 4}));
  // The list contains one empty range, because an empty list would mean every row.
  EXPECT_THAT(ranges(all, 'r', rows, 2), testing::ElementsAre(IndexRange{0, 0}));
  EXPECT_TRUE(ranges(all, 'r', parse_partition(2, "9:{1}"), 1).empty());
  // A split of another factor does not change the ranges.
  EXPECT_TRUE(ranges(all, 'x', Partition::even(3, 4), 1).empty());
}

TEST_F(RuleFactors, LocalRangesDivideRangesOfNode) {
  const SelectParams some{{{10, 4}, {40, 5}}};
  const Tensor& node = *get_rows(g, f32({4, 9, 1, 1}), i32({5, 1, 1, 1}), some);
  const Partition rows = parse_partition(2, "2:{0} 3:{1} 4:{0}");
  EXPECT_THAT(ranges(node, 'r', rows, 0), testing::ElementsAre(IndexRange{10, 2}, IndexRange{41, 4}));
  EXPECT_THAT(ranges(node, 'r', rows, 1), testing::ElementsAre(IndexRange{12, 2}, IndexRange{40, 1}));
}

TEST_F(RuleFactors, ParametersOfRepeatHaveLocalShape) {
  const Tensor& node = *repeat(g, f32({6, 3, 1, 1}), {12, 3, 5, 1});
  const Rule rule = *rule_for(node);
  const Partition a = parse_partition(3, "4:{0} 2:{2}");
  const auto local = [&](int device) {
    return std::get<RepeatParams>(local_params(node, rule, rule.find('a'), a, device)).shape;
  };
  EXPECT_EQ(local(0), (Shape{8, 3, 5, 1}));
  EXPECT_EQ(local(1), (Shape{0, 3, 5, 1}));
  EXPECT_EQ(local(2), (Shape{4, 3, 5, 1}));
}

}  // namespace
}  // namespace shoal::meta
