#include "meta/meta.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/meta/layouts.h"

namespace shoal::meta {
namespace {

std::string refusal(const SplitState& state, const Tensor& tensor, int devices) {
  try {
    to_layout(state, tensor, devices);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(SplitState, SegmentsBecomeRunsInDeviceOrder) {
  const Tensor qkv = weight(DType::kF32, {256, 512, 1, 1});
  const Layout layout = to_layout(SplitState::split(1, {{128, 128}, {64, 64}, {64, 64}}), qkv, 2);
  EXPECT_EQ(layout.to_string(), "split 1 [128:{0} 128:{1} 64:{0} 64:{1} 64:{0} 64:{1}]");
}

TEST(SplitState, AcceptsRunsWithSeveralOwners) {
  const Tensor k = weight(DType::kF32, {256, 128, 1, 1});
  const Partition shared = Partition::even(8, 8).scale_up(32).group(2)->slice(0, 128);
  EXPECT_EQ(to_layout(SplitState::split(1, shared), k, 8), Layout::split(1, shared));
}

TEST(SplitState, ConvertsMirroredAndPartialStatesToLayouts) {
  const Tensor plain = weight(DType::kF16, {256, 4, 1, 1});
  EXPECT_EQ(to_layout(SplitState::mirrored(), plain, 2), Layout::mirrored());
  EXPECT_EQ(to_layout(SplitState::partial(), plain, 2), Layout::partial());
  EXPECT_THAT(refusal(SplitState::partial(), weight(DType::kQ8_0, {256, 4, 1, 1}), 2),
              testing::HasSubstr("partial needs"));
}

TEST(SplitState, ErrorsDescribeInvalidCallbackResults) {
  const Tensor q = weight(DType::kF32, {256, 256, 1, 1});
  EXPECT_EQ(refusal(SplitState::split(1, {{192, 58}}), q, 2),
            "split state of blk.0.attn_q: segment lengths on axis 1 add up to 250, expected 256 (192 + 58)");
  EXPECT_THAT(refusal(SplitState::split(1, {{128, 128}}), q, 3), testing::HasSubstr("2 lengths for 3 devices"));
  EXPECT_THAT(refusal(SplitState::split(1, {{300, -44}}), q, 2), testing::HasSubstr("300"));
  EXPECT_THAT(refusal(SplitState::split(1, {{256, -1}, {0, 1}}), q, 2), testing::HasSubstr("-1"));
  SplitState no_axis = SplitState::split(1, {{128, 128}});
  no_axis.axis = static_cast<SplitAxis>(7);
  EXPECT_THAT(refusal(no_axis, q, 2), testing::HasSubstr("no axis 7"));
  EXPECT_THAT(refusal(SplitState::split(1, Partition::even(3, 256)), q, 2), testing::HasSubstr("3 devices"));
  EXPECT_THAT(refusal(SplitState::split(1, Partition::even(2, 250)), q, 2), testing::HasSubstr("250, expected 256"));
  EXPECT_THAT(refusal(SplitState::split(0, {{100, 156}}), weight(DType::kQ4_0, {256, 2, 1, 1}), 2),
              testing::HasSubstr("cut at 100"));
  SplitState both = SplitState::split(1, {{128, 128}});
  both.partition = Partition::even(2, 256);
  EXPECT_THAT(refusal(both, q, 2), testing::HasSubstr("only one"));
  SplitState mirrored = SplitState::mirrored();
  mirrored.segments = {{128, 128}};
  EXPECT_THAT(refusal(mirrored, q, 2), testing::HasSubstr("takes no segments"));
}

TEST(SplitState, RatioDividesAnyLength) {
  const Tensor plain = weight(DType::kF32, {256, 7, 1, 1}), blocks = weight(DType::kQ8_0, {96, 7, 1, 1});
  EXPECT_EQ(to_layout(SplitState::by_ratio(1, {3, 0, 1}), plain, 3).to_string(), "split 1 [5:{0} 2:{2}]");
  EXPECT_EQ(to_layout(SplitState::even(1), plain, 3).to_string(), "split 1 [3:{0} 2:{1} 2:{2}]");
  EXPECT_EQ(to_layout(SplitState::even(0), blocks, 2).to_string(), "split 0 [64:{0} 32:{1}]");
  EXPECT_EQ(to_layout(SplitState::by_ratio(0, {1, 3}), blocks, 2).to_string(), "split 0 [32:{0} 64:{1}]");
  EXPECT_THAT(refusal(SplitState::by_ratio(1, {1, 1}), plain, 3), testing::HasSubstr("length 2, expected 3"));
  SplitState both = SplitState::even(1);
  both.segments = {{4, 3}};
  EXPECT_THAT(refusal(both, plain, 2), testing::HasSubstr("only one"));
  both = SplitState::mirrored();
  both.ratio.emplace();
  EXPECT_THAT(refusal(both, plain, 2), testing::HasSubstr("takes no segments"));
}

TEST(SplitState, MapsOfNamesAreCallbacks) {
  const Tensor q = weight(DType::kF32, {256, 4, 1, 1});
  EXPECT_EQ(split_states({{q.name, SplitState::even(1)}})(q).to_string(), "axis 1");
  EXPECT_EQ(split_states({{"other", SplitState::even(1)}})(q).to_string(), "mirrored");
  EXPECT_FALSE(constraints({{"other", Constraint::requirement(SplitState::even(1))}})(q));
  const auto hint = constraints({{q.name, Constraint::hint(SplitState::even(1), 2)}})(q);
  ASSERT_TRUE(hint);
  EXPECT_FALSE(hint->required);
  EXPECT_EQ(hint->factor, 2);
}

/// SplitAxis also has values for "mirrored" and "partial". These values are not axes.
TEST(SplitState, RefusesInvalidAxes) {
  const auto no_axis = [](int axis) {
    return testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("no axis " + std::to_string(axis)));
  };
  for (const int axis : {-1, 4, 5, 6, 256 + 1}) {
    EXPECT_THAT([&] { SplitState::split(axis, std::vector<std::vector<int64_t>>{}); }, no_axis(axis));
    EXPECT_THAT([&] { SplitState::split(axis, {{128, 128}}); }, no_axis(axis));
    EXPECT_THAT([&] { SplitState::split(axis, Partition::even(2, 256)); }, no_axis(axis));
  }
}

TEST(SplitState, AxesHaveNames) {
  EXPECT_EQ(name_of(SplitAxis::k0), "axis 0");
  EXPECT_EQ(name_of(SplitAxis::kMirrored), "mirrored");
  EXPECT_EQ(name_of(SplitAxis::kPartial), "partial");
}

TEST(SplitState, PrintsSegmentsAndPartitions) {
  EXPECT_EQ(SplitState::split(1, {{128, 128}, {64, 64}}).to_string(), "axis 1 {128, 128} {64, 64}");
  EXPECT_EQ(SplitState::split(0, parse_partition(2, "3:{0,1} 2:{1}")).to_string(), "axis 0 [3:{0,1} 2:{1}]");
  EXPECT_EQ(SplitState::by_ratio(0, {3, 0.5}).to_string(), "axis 0 by 3:0.5");
  EXPECT_EQ(SplitState::partial().to_string(), "partial");
}

}  // namespace
}  // namespace shoal::meta
