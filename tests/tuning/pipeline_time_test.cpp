#include "tuning/pipeline_time.h"

#include <gtest/gtest.h>

#include "tuning/predict.h"

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;
using namespace models;

using Runs = std::vector<std::vector<StageWork>>;
const std::vector<CoreDemand> kOwnCores{{1, 0}, {0, 1}}, kSharedCores{{1}, {1}};
const std::vector<double> kTwoDomains{1, 1}, kOneCore{1}, kTwoCores{2}, kNoLimit{0};

TEST(PipelineTime, RunsOverlapOnDifferentBackends) {
  const Runs first_longer(3, {{0, 3}, {1, 1}}), last_longer(3, {{0, 1}, {1, 3}});
  EXPECT_DOUBLE_EQ(pipeline_seconds(first_longer, 4, kOwnCores, kTwoDomains), 10);
  EXPECT_DOUBLE_EQ(pipeline_seconds(last_longer, 4, kOwnCores, kTwoDomains), 10);
  EXPECT_DOUBLE_EQ(pipeline_seconds(Runs{}, 4, kOwnCores, kTwoDomains), 0);
}

TEST(PipelineTime, OneBackendDoesOneThingAtATime) {
  const Runs runs(3, {{0, 3}, {0, 1}});
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kOwnCores, kTwoDomains), 12);
  // Back and forth: what comes back is queued before the next run begins.
  const Runs back(2, {{0, 1}, {1, 2}, {0, 1}});
  EXPECT_DOUBLE_EQ(pipeline_seconds(back, 4, kOwnCores, kTwoDomains), 8);
}

TEST(PipelineTime, ARunWaitsForASlot) {
  // Three stages: with one slot the second run may lie before stage 2 only when the first one is taken from there.
  const std::vector<CoreDemand> three{{0}, {0}, {0}};
  const Runs runs(3, {{0, 1}, {1, 1}, {2, 10}});
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, three, kNoLimit), 32);
  const Runs uneven{{{0, 1}, {1, 1}}, {{0, 1}, {1, 1}}, {{0, 20}, {1, 1}}, {{0, 1}, {1, 1}}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(uneven, 1, kOwnCores, kTwoDomains), 24);
}

TEST(PipelineTime, BackendsShareTheCoresOfADomain) {
  const Runs runs(2, {{0, 2}, {1, 2}});
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kSharedCores, kTwoCores), 6);
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kSharedCores, kOneCore), 8);  // overlapping gains nothing
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kSharedCores, kNoLimit), 6);
}

TEST(PipelineTime, ManyRunsAreQuick) {
  // 100,000 runs; looking at all of them whenever one ends would take minutes.
  const std::vector<CoreDemand> three{{0}, {0}, {0}};
  const int count = 100000;
  const Runs runs(count, {{0, 1}, {1, 2}, {2, 1}});
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, three, kNoLimit), 2.0 * count + 2);
  const Runs back(count, {{0, 1}, {1, 2}, {0, 1}});
  EXPECT_DOUBLE_EQ(pipeline_seconds(back, 4, three, kNoLimit), 4.0 * count);
}

TEST(PipelineTime, RunsThatAreAlikeNeedNotBeFollowed) {
  // What every run takes repeats itself: with slots that are scarce, cores that are shared, and both ways to end.
  const std::vector<CoreDemand> three{{1}, {1}, {1}};
  const std::vector<std::vector<StageWork>> kinds{
      {{0, 1}, {1, 2}, {2, 1}}, {{0, 1}, {1, 2}, {0, 1}}, {{0, 1}, {1, 1}, {2, 10}}, {{0, 3}, {1, 1}, {2, 2}}};
  for (const std::vector<double>& cores : {kNoLimit, kTwoCores}) {
    for (const int slots : {1, 2, 4}) {
      Runs all;
      std::vector<AlikeRuns> alike;
      for (const auto& kind : kinds) {
        alike.push_back({1000, kind});
        all.insert(all.end(), 1000, kind);
      }
      const double exact = pipeline_seconds(std::span<const std::vector<StageWork>>(all), slots, three, cores);
      // A run alone takes at most 12 s, and 4 * 872 of them are not followed.
      EXPECT_NEAR(pipeline_seconds(std::span<const AlikeRuns>(alike), slots, three, cores), exact, 12 * 4 * 872 / 64.0);
      EXPECT_NEAR(pipeline_seconds(std::span<const AlikeRuns>(alike), slots, three, cores) / exact, 1, 1e-3);
    }
  }
  const std::vector<AlikeRuns> huge{{int64_t{1} << 31, kinds[0]}};
  EXPECT_NEAR(pipeline_seconds(std::span<const AlikeRuns>(huge), 4, three, kNoLimit) / (2.0 * (int64_t{1} << 31) + 2),
              1, 1e-12);
}

}  // namespace
}  // namespace shoal::tuning
