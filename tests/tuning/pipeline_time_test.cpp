#include "tuning/pipeline_time.h"

#include <gtest/gtest.h>

namespace shoal::tuning {
namespace {

using Runs = std::vector<AlikeRuns>;
const std::vector<CoreDemand> kOwnCores{{1, 0}, {0, 1}}, kSharedCores{{1}, {1}}, kThree{{0}, {0}, {0}};
const std::vector<double> kTwoDomains{1, 1}, kOneCore{1}, kTwoCores{2}, kNoLimit{0};

TEST(PipelineTime, RunsOverlapOnDifferentBackends) {
  const Runs first_longer{{3, {{0, 3}, {1, 1}}}}, last_longer{{3, {{0, 1}, {1, 3}}}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(first_longer, 4, kOwnCores, kTwoDomains), 10);
  EXPECT_DOUBLE_EQ(pipeline_seconds(last_longer, 4, kOwnCores, kTwoDomains), 10);
  EXPECT_DOUBLE_EQ(pipeline_seconds(Runs{}, 4, kOwnCores, kTwoDomains), 0);
}

TEST(PipelineTime, BackendRunsOneTaskAtATime) {
  const Runs runs{{3, {{0, 3}, {0, 1}}}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kOwnCores, kTwoDomains), 12);
  // The third stage of a run uses the first backend again. This stage is queued before the next run begins.
  const Runs back{{2, {{0, 1}, {1, 2}, {0, 1}}}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(back, 4, kOwnCores, kTwoDomains), 8);
}

TEST(PipelineTime, RunWaitsForFreeSlot) {
  // The last stages of the three runs follow each other without gaps.
  const Runs runs{{3, {{0, 1}, {1, 1}, {2, 10}}}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kThree, kNoLimit), 32);
  const Runs uneven{{2, {{0, 1}, {1, 1}}}, {1, {{0, 20}, {1, 1}}}, {1, {{0, 1}, {1, 1}}}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(uneven, 1, kOwnCores, kTwoDomains), 24);
  // With one slot (at most one run in flight between two stages), stage 0 of each run cannot begin before stage 1 of
  // the previous run begins.
  const Runs long_last{{1, {{0, 1}, {1, 10}}}, {1, {{0, 1}, {1, 1}}}, {1, {{0, 9}, {1, 1}}}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(long_last, 1, kOwnCores, kTwoDomains), 21);
  EXPECT_DOUBLE_EQ(pipeline_seconds(long_last, 4, kOwnCores, kTwoDomains), 13);
}

TEST(PipelineTime, BackendsShareCoresOfDomain) {
  const Runs runs{{2, {{0, 2}, {1, 2}}}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kSharedCores, kTwoCores), 6);
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kSharedCores, kOneCore), 8);  // overlap saves no time
  EXPECT_DOUBLE_EQ(pipeline_seconds(runs, 4, kSharedCores, kNoLimit), 6);
}

TEST(PipelineTime, EqualRunsAreExtrapolated) {
  const std::vector<std::vector<StageWork>> kinds{
      {{0, 1}, {1, 2}, {2, 1}}, {{0, 1}, {1, 2}, {0, 1}}, {{0, 1}, {1, 1}, {2, 10}}, {{0, 3}, {1, 1}, {2, 2}}};
  for (const int slots : {1, 2, 4}) {
    Runs all, alike;
    for (const auto& kind : kinds) {
      alike.push_back({1000, kind});
      for (int i = 0; i < 1000; ++i) all.push_back({1, kind});
    }
    EXPECT_DOUBLE_EQ(pipeline_seconds(alike, slots, kThree, kNoLimit), pipeline_seconds(all, slots, kThree, kNoLimit));
  }
  const Runs huge{{int64_t{1} << 31, kinds[0]}};
  EXPECT_DOUBLE_EQ(pipeline_seconds(huge, 4, kThree, kNoLimit), 2.0 * (int64_t{1} << 31) + 2);
}

}  // namespace
}  // namespace shoal::tuning
