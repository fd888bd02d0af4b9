#include "meta/layout/partition.h"

#include <gmock/gmock.h>

#include <random>

#include "base/error.h"
#include "tests/meta/layouts.h"

namespace shoal::meta {
namespace {

/// The owners of every element.
std::vector<Owners> elements_of(const Partition& partition) {
  std::vector<Owners> elements;
  for (const Run& run : partition.runs()) elements.insert(elements.end(), run.length, run.owners);
  return elements;
}

Partition from_elements(int devices, const std::vector<Owners>& elements) {
  std::vector<Run> runs;
  for (const Owners& owners : elements) runs.push_back({1, owners});
  return Partition(devices, std::move(runs));
}

Partition random_partition(std::mt19937& random, int devices, int64_t length) {
  std::vector<Owners> elements;
  for (int64_t i = 0; i < length; ++i) {
    if (!elements.empty() && random() % 2) {
      elements.push_back(elements.back());
      continue;
    }
    Owners owners{static_cast<int>(random() % devices)};
    if (random() % 4 == 0) owners.push_back(static_cast<int>(random() % devices));
    elements.push_back(owners);
  }
  return from_elements(devices, elements);
}

std::vector<int64_t> owned_elements(const Partition& partition, int device) {
  std::vector<int64_t> indices;
  int64_t index = 0;
  for (const Owners& owners : elements_of(partition)) {
    if (std::find(owners.begin(), owners.end(), device) != owners.end()) indices.push_back(index);
    ++index;
  }
  return indices;
}

/// Calls f(partition) for random partitions. The number of devices is 1 to 16, or 64.
template <class F>
void for_random_partitions(F f) {
  std::mt19937 random(7);
  for (int devices : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 64}) {
    for (int64_t length = 0; length <= 24; ++length) f(random_partition(random, devices, length));
  }
}

TEST(Partition, NormalFormMergesRunsAndDropsEmptyRuns) {
  const Partition p(3, {{2, {1, 0, 1}}, {0, {2}}, {1, {0, 1}}, {4, {2}}});
  EXPECT_EQ(p.to_string(), "3:{0,1} 4:{2}");
  EXPECT_EQ(p.length(), 7);
  EXPECT_EQ(p, parse_partition(3, "3:{0,1} 4:{2}"));
}

TEST(Partition, RefusesInvalidRuns) {
  EXPECT_THROW(Partition(2, {{-1, {0}}}), InvalidArgument);
  EXPECT_THROW(Partition(2, {{1, {}}}), InvalidArgument);
  EXPECT_THROW(Partition(2, {{1, {2}}}), InvalidArgument);
  EXPECT_THROW(Partition(2, {{1, {-1}}}), InvalidArgument);
  EXPECT_THROW(Partition::even(2, 4).slice(3, 2), InvalidArgument);
  EXPECT_THROW(Partition::concat(std::vector{Partition::even(2, 4), Partition::even(3, 4)}), InvalidArgument);
}

TEST(Partition, EvenSplitGivesRemainderToFirstDevices) {
  EXPECT_EQ(Partition::even(2, 8).to_string(), "4:{0} 4:{1}");
  EXPECT_EQ(Partition::even(3, 8).to_string(), "3:{0} 3:{1} 2:{2}");
  EXPECT_EQ(Partition::even(4, 2).to_string(), "1:{0} 1:{1}");
  EXPECT_EQ(Partition::even(4, 0).to_string(), "empty");
}

TEST(Partition, RatioBoundariesAreRoundedToUnits) {
  const auto text = [](int64_t length, int64_t unit, std::vector<double> ratio) {
    return Partition::by_ratio(length, unit, ratio).to_string();
  };
  EXPECT_EQ(text(9, 2, {1, 1}), "4:{0} 5:{1}");
  EXPECT_EQ(text(800, 32, {5, 0, 2}), "576:{0} 224:{2}");
  EXPECT_EQ(text(10, 1, {0, 3, 0}), "10:{1}");
  EXPECT_EQ(text(7, 4, {1, 1, 0}), "4:{0} 3:{1}");
  EXPECT_EQ(text(100, 1, {1, 1, 1}), "33:{0} 34:{1} 33:{2}");
  EXPECT_EQ(text(int64_t{1} << 40, 1, {1e300, 1e300}), "549755813888:{0} 549755813888:{1}");
  for (int devices = 1; devices < 20; ++devices) {
    const Partition even = Partition::by_ratio(1000, 8, std::vector<double>(devices, 0.1));
    for (int d = 0; d < devices; ++d) EXPECT_NEAR(even.local_length(d), 1000.0 / devices, 8) << devices;
  }
}

TEST(Partition, SharesMayBeZero) {
  const Partition p = Partition::from_shares(std::vector<int64_t>{5, 0, 2});
  EXPECT_EQ(p.to_string(), "5:{0} 2:{2}");
  EXPECT_EQ(p.local_length(1), 0);
  EXPECT_TRUE(p.owned_by(1).empty());
}

TEST(Partition, SegmentsHaveSeparateRuns) {
  const Partition qkv = parse_partition(2, "4:{0} 4:{1} 2:{0} 2:{1} 2:{0} 2:{1}");
  EXPECT_EQ(qkv.local_length(0), 8);
  EXPECT_THAT(qkv.owned_by(0), testing::ElementsAre(OwnedRun{0, 4, 0}, OwnedRun{8, 2, 4}, OwnedRun{12, 2, 6}));
  EXPECT_FALSE(qkv.is_rank_ordered());
}

TEST(Partition, MergesNeighbouringRunsOfOneOwner) {
  const Partition p = parse_partition(2, "2:{0} 3:{0,1} 1:{1}");
  EXPECT_THAT(p.owned_by(0), testing::ElementsAre(OwnedRun{0, 5, 0}));
  EXPECT_THAT(p.owned_by(1), testing::ElementsAre(OwnedRun{2, 4, 0}));
  EXPECT_FALSE(p.is_disjoint());
  EXPECT_EQ(p.disjoint().to_string(), "5:{0} 1:{1}");
}

TEST(Partition, DetectsRankOrder) {
  EXPECT_TRUE(parse_partition(3, "2:{0} 2:{2}").is_rank_ordered());
  EXPECT_TRUE(Partition(3, {}).is_rank_ordered());
  EXPECT_FALSE(parse_partition(3, "2:{1} 2:{0}").is_rank_ordered());
  EXPECT_FALSE(parse_partition(2, "2:{0} 2:{1} 1:{0}").is_rank_ordered());
  EXPECT_FALSE(parse_partition(2, "2:{0,1}").is_rank_ordered());
}

TEST(Partition, OwnedRunsMatchOwnersOfElements) {
  for_random_partitions([](const Partition& p) {
    for (int d = 0; d < p.devices(); ++d) {
      std::vector<int64_t> indices;
      for (const OwnedRun& run : p.owned_by(d)) {
        ASSERT_EQ(run.local_begin, static_cast<int64_t>(indices.size()));
        for (int64_t i = 0; i < run.length; ++i) indices.push_back(run.begin + i);
      }
      ASSERT_EQ(indices, owned_elements(p, d)) << p.to_string();
      ASSERT_EQ(p.local_length(d), static_cast<int64_t>(indices.size()));
    }
  });
}

TEST(Partition, CoverageMatchesOwnersOfElements) {
  std::mt19937 random(3);
  int covered = 0, uncovered = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const int devices = 1 + trial % 4;
    const int64_t length = random() % 10;
    const Partition have = random_partition(random, devices, length);
    const Partition need = random_partition(random, devices, length);
    for (int d = 0; d < devices; ++d) {
      const std::vector<int64_t> a = owned_elements(have, d), b = owned_elements(need, d);
      const bool expected = std::includes(a.begin(), a.end(), b.begin(), b.end());
      ASSERT_EQ(have.covers(need, d), expected) << have.to_string() << " covers " << need.to_string();
      ++(expected ? covered : uncovered);
    }
  }
  EXPECT_GT(covered, 100);
  EXPECT_GT(uncovered, 100);
}

TEST(Partition, OperationsGiveSameOwnersAsOperationsOnElements) {
  for_random_partitions([](const Partition& p) {
    const std::vector<Owners> elements = elements_of(p);
    for (int64_t begin = 0; begin <= p.length(); begin += 3) {
      for (int64_t length = 0; begin + length <= p.length(); length += 2) {
        const std::vector<Owners> part(elements.begin() + begin, elements.begin() + begin + length);
        const Partition sliced = p.slice(begin, length);
        ASSERT_EQ(sliced, from_elements(p.devices(), part));
        const std::vector<Partition> parts{p.slice(0, begin), sliced,
                                           p.slice(begin + length, p.length() - begin - length)};
        ASSERT_EQ(Partition::concat(parts), p);
      }
    }
    for (int64_t n : {1, 2, 3, 5}) {
      std::vector<Owners> tiled, scaled;
      for (int64_t i = 0; i < n; ++i) tiled.insert(tiled.end(), elements.begin(), elements.end());
      for (const Owners& owners : elements) scaled.insert(scaled.end(), n, owners);
      ASSERT_EQ(p.tile(n), from_elements(p.devices(), tiled));
      ASSERT_EQ(p.tile(n).untile(n), p);
      ASSERT_EQ(p.scale_up(n), from_elements(p.devices(), scaled));
      ASSERT_EQ(p.scale_up(n).scale_down(n), p);
    }
  });
}

TEST(Partition, UnequalPartsCannotBeUntiledOrScaledDown) {
  EXPECT_EQ(parse_partition(2, "2:{0} 2:{1} 2:{0} 1:{1}").untile(2), std::nullopt);
  EXPECT_EQ(parse_partition(2, "2:{0} 2:{1} 2:{1} 2:{0}").untile(2), std::nullopt);
  EXPECT_EQ(parse_partition(2, "3:{0} 1:{1}").scale_down(2), std::nullopt);
}

/// Computes group() element by element, as partition.h defines it.
std::optional<Partition> group_by_definition(const Partition& p, int64_t g) {
  if (p.length() % g != 0) return std::nullopt;
  const std::vector<Owners> elements = elements_of(p);
  std::vector<Owners> groups(p.length() / g);
  for (int64_t i = 0; i < p.length(); ++i) {
    groups[i / g].insert(groups[i / g].end(), elements[i].begin(), elements[i].end());
  }
  const Partition result = from_elements(p.devices(), groups);
  for (int d = 0; d < p.devices(); ++d) {
    const std::vector<int64_t> local = owned_elements(p, d), local_groups = owned_elements(result, d);
    if (local.empty()) continue;
    if (local.size() % local_groups.size() != 0) return std::nullopt;
    const size_t per_group = local.size() / local_groups.size();
    for (size_t j = 0; j < local.size(); ++j) {
      if (local[j] / g != local_groups[j / per_group]) return std::nullopt;
    }
  }
  return result;
}

TEST(Partition, GroupingMatchesDefinition) {
  int fits = 0, refused = 0;
  for_random_partitions([&](const Partition& p) {
    for (int64_t g : {1, 2, 3, 4, 6}) {
      const auto expected = group_by_definition(p, g);
      ASSERT_EQ(p.group(g), expected) << p.to_string() << " by " << g;
      ++(expected ? fits : refused);
      ASSERT_EQ(p.scale_up(g).group(g), p);
    }
  });
  EXPECT_GT(fits, 100);
  EXPECT_GT(refused, 100);
}

TEST(Partition, GroupingMatchesExamples) {
  EXPECT_EQ(parse_partition(3, "1:{0} 1:{1} 2:{2}").group(2)->to_string(), "1:{0,1} 1:{2}");
  EXPECT_EQ(parse_partition(2, "1:{0} 2:{1} 1:{0}").group(2)->to_string(), "2:{0,1}");
  // Device 0 has one query head of the first KV head and two query heads of the second KV head.
  EXPECT_EQ(parse_partition(2, "1:{0} 1:{1} 2:{0}").group(2), std::nullopt);
  EXPECT_EQ(Partition::even(8, 8).group(2)->to_string(), "1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}");
}

TEST(Partition, TextFoldsRepetitions) {
  EXPECT_EQ(parse_partition(2, "2:{0} 2:{1}").tile(8).to_string(), "(2:{0} 2:{1}) x 8");
  EXPECT_EQ(parse_partition(2, "2:{0} 2:{1}").tile(2).to_string(), "2:{0} 2:{1} 2:{0} 2:{1}");
  const std::vector<Partition> parts{parse_partition(2, "5:{0}"), parse_partition(2, "2:{1} 2:{0}").tile(3)};
  EXPECT_EQ(Partition::concat(parts).to_string(), "5:{0} (2:{1} 2:{0}) x 3");
}

TEST(Partition, TextRoundTrips) {
  for_random_partitions([](const Partition& p) {
    ASSERT_EQ(Partition::parse(p.devices(), p.to_string()), p) << p.to_string();
    const Partition tiled = p.tile(5);
    ASSERT_EQ(Partition::parse(p.devices(), tiled.to_string()), tiled) << tiled.to_string();
  });
  EXPECT_EQ(Partition::parse(2, "empty"), Partition(2, {}));
  EXPECT_EQ(Partition::parse(2, " 3:{ 0 , 1 } (1:{0})x 2 ").to_string(), "3:{0,1} 2:{0}");
}

TEST(Partition, ParseRefusesOtherTexts) {
  for (const char* text : {"3", "3:", "3:{", "3:{}", "3:{0", "3:{0}}", "-3:{0}", "3:{-1}", "x", "(3:{0}", "(3:{0}) 2",
                           "(3:{0}) x", "() x 2", "3:{2}", "99999999999999999999:{0}", "(1:{0} 1:{1}) x 9999999999"}) {
    EXPECT_THROW(Partition::parse(2, text), InvalidArgument) << text;
  }
  EXPECT_THAT([] { Partition::parse(2, "3:{0} 2"); },
              testing::ThrowsMessage<InvalidArgument>(
                  "'3:{0} 2' is not a partition (error at ''); write runs with their owners, such as '3:{0} 2:{0,1}' "
                  "or '(2:{0} 2:{1}) x 8'"));
  const std::string long_text = "(1:{0} 1:{1}) x 500000 (1:{0} 1:{1}) x 500000";
  EXPECT_THAT(
      [&] { Partition::parse(2, long_text); },
      testing::ThrowsMessage<InvalidArgument>("'" + long_text + "' has more than 1048576 runs; use fewer repetitions"));
}

}  // namespace
}  // namespace shoal::meta
