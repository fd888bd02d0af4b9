// Tests of the table of collectives, and of the values that are computed from its rows.
#include "graph/collective.h"

#include <gtest/gtest.h>

#include <vector>

namespace shoal {
namespace {

TEST(CollectiveTable, RowsHaveTheOrderOfTheEnumeration) {
  for (size_t i = 0; i < kCollectives.size(); ++i) {
    const CollectiveInfo& row = info(static_cast<Collective>(i));
    EXPECT_EQ(row.kind, static_cast<Collective>(i)) << row.name;
    EXPECT_EQ(collective_from_name(row.name), row.kind);
    if (row.node == Op::kNone) continue;
    EXPECT_EQ(name_of(row.node), row.name);
    EXPECT_EQ(collective_of(row.node), row.kind);
  }
  EXPECT_EQ(collective_from_name("mul_mat"), std::nullopt);
  EXPECT_EQ(info(Collective::kBroadcast).node, Op::kNone);
}

TEST(CollectiveTable, CountsElementsPerRank) {
  const std::vector<int64_t> counts{4, 6, 0};
  const Amounts parts{3, 0, counts}, message{3, 10, {}, 2};
  EXPECT_EQ(elements_in(Collective::kAllReduce, message, 1), 10);
  EXPECT_EQ(elements_out(Collective::kAllReduce, message, 1), 10);
  EXPECT_EQ(elements_in(Collective::kAllGather, parts, 1), 6);
  EXPECT_EQ(elements_out(Collective::kAllGather, parts, 1), 10);
  EXPECT_EQ(elements_between(Collective::kAllGather, parts, 0, 1), 4);
  EXPECT_EQ(elements_in(Collective::kReduceScatter, parts, 0), 10);
  EXPECT_EQ(elements_out(Collective::kReduceScatter, parts, 0), 4);
  EXPECT_EQ(elements_in(Collective::kBroadcast, message, 1), 0);
  EXPECT_EQ(elements_in(Collective::kBroadcast, message, 2), 10);
  EXPECT_EQ(elements_out(Collective::kBroadcast, message, 1), 10);
  EXPECT_EQ(elements_between(Collective::kBroadcast, message, 1, 0), 0);
  const std::vector<int64_t> pairs{1, 2, 4, 5};
  const Amounts exchanged{2, 0, pairs};
  EXPECT_EQ(elements_in(Collective::kAllToAll, exchanged, 1), 9);
  EXPECT_EQ(elements_out(Collective::kAllToAll, exchanged, 1), 7);
  EXPECT_EQ(elements_between(Collective::kAllToAll, exchanged, 1, 0), 4);
}

TEST(CollectiveTable, BusFactorsMatchNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kReduceScatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllToAll, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kBroadcast, 8), 1.0);
}

}  // namespace
}  // namespace shoal
