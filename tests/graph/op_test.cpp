#include "graph/op.h"

#include <gtest/gtest.h>

#include <set>

namespace shoal {
namespace {

TEST(OpTable, RowsHaveTheOrderOfTheEnumeration) {
  std::set<std::string_view> names;
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& row = info(static_cast<Op>(i));
    EXPECT_EQ(row.op, static_cast<Op>(i)) << row.name;
    EXPECT_NE(row.infer, nullptr) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
}

TEST(OpTable, NamesRoundTrip) {
  for (int i = 1; i < kOpCount; ++i) EXPECT_EQ(op_from_name(name_of(static_cast<Op>(i))), static_cast<Op>(i));
  EXPECT_EQ(op_from_name("none"), std::nullopt);
  EXPECT_EQ(op_from_name("mul_mat2"), std::nullopt);
  EXPECT_EQ(op_from_name(""), std::nullopt);
}

TEST(OpTable, SourcesAndAliasesAreConsistent) {
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& row = info(static_cast<Op>(i));
    EXPECT_TRUE(row.max_src == -1 || row.min_src <= row.max_src) << row.name;
    EXPECT_EQ(row.kind == OpKind::kView, row.alias == Alias::kView) << row.name;
    // An op with a fixed max_src may overwrite only sources with indices below max_src.
    EXPECT_EQ(row.max_src < 0 ? row.in_place_sources : row.in_place_sources >> row.max_src, 0u) << row.name;
    if (row.alias != Alias::kNone) {
      EXPECT_EQ(row.in_place_sources, 0u) << row.name;
      EXPECT_GE(row.min_src, 1) << row.name;
    }
  }
  for (const Op op : {Op::kSetRows, Op::kSetSlice}) EXPECT_EQ(info(op).alias, Alias::kWrites);
}

TEST(OpTable, KindsOfViewsCollectivesAndLeavesAreCorrect) {
  EXPECT_TRUE(is_view(Op::kReshape));
  EXPECT_TRUE(is_view(Op::kPermute));
  EXPECT_FALSE(is_view(Op::kSetRows));
  EXPECT_FALSE(is_view(Op::kContiguous));
  EXPECT_TRUE(is_collective(Op::kAllReduce));
  EXPECT_FALSE(is_collective(Op::kRepeat));
  EXPECT_EQ(info(Op::kNone).kind, OpKind::kLeaf);
}

}  // namespace
}  // namespace shoal
