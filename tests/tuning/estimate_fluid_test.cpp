#include "tuning/estimate_fluid.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;

using Works = std::vector<Work>;

/// The work of one rank, with the rank's cores and bandwidth.
struct Rank {
  Works work;
  double cores = 1;
  double bandwidth = 16;
};

std::vector<std::vector<double>> ends_of(const Domain& domain, const std::vector<Rank>& ranks) {
  std::vector<std::vector<double>> ends;
  for (const Rank& rank : ranks) ends.emplace_back(rank.work.size(), -1.0);
  std::vector<Flow> flows;
  for (size_t i = 0; i < ranks.size(); ++i) {
    flows.push_back({ranks[i].cores, ranks[i].bandwidth, ranks[i].work, ends[i]});
  }
  run_flows(domain, flows);
  return ends;
}

using Ends = std::vector<std::vector<double>>;

TEST(EstimateFluid, SingleRankTakesTimeOfItsWork) {
  EXPECT_EQ(ends_of({"", 0, 0}, {{{{2, 100}, {0, 0}, {3, 0}}}}), (Ends{{2, 2, 5}}));
  EXPECT_EQ(ends_of({"", 25, 0}, {{{{2, 100}, {3, 0}}}}), (Ends{{4, 7}}))
      << "the domain has 25 of the 50 bytes/s that the rank demands";
  EXPECT_EQ(ends_of({"", 0, 0.5}, {{{{2, 100}, {3, 0}}}}), (Ends{{4, 10}})) << "the domain has half a core";
  EXPECT_EQ(ends_of({"", 0, 0}, {{}, {{{0, 0}}}}), (Ends{{}, {0}})) << "the ranks have no work";
}

TEST(EstimateFluid, RanksRunAtFullSpeedWithinLimits) {
  EXPECT_EQ(ends_of({"", 32, 2}, {{{{3, 48}}}, {{{6, 96}}}}), (Ends{{3}, {6}}));
  EXPECT_EQ(ends_of({"", 0, 0}, {{{{3, 48}}}, {{{6, 96}}}}), (Ends{{3}, {6}}));
}

// Each rank demands 16 of the 24 bytes/s, so each rank gets 12 bytes/s until both ranks have read 48 bytes. The second
// rank then reads another 48 bytes at 16 bytes/s.
TEST(EstimateFluid, RanksShareBandwidthUntilOneIsDone) {
  EXPECT_EQ(ends_of({"", 24, 0}, {{{{3, 48}}}, {{{6, 96}}}}), (Ends{{4}, {7}}));
}

TEST(EstimateFluid, RanksShareCoresUntilOneIsDone) {
  EXPECT_EQ(ends_of({"", 0, 1.5}, {{{{3, 0}}}, {{{6, 0}}}}), (Ends{{4}, {7}}));
  EXPECT_EQ(ends_of({"", 0, 2}, {{{{3, 0}}, 1}, {{{6, 0}}, 3}}), (Ends{{6}, {10.5}}))
      << "half speed until 6 s, then 3 s of work with 2 of 3 cores";
}

// Each rank has three quarters of a core, so it demands 12 bytes/s. The bandwidth is 16 bytes/s, so each rank gets 8
// bytes/s.
TEST(EstimateFluid, RanksShareCoresAndBandwidth) {
  EXPECT_EQ(ends_of({"", 16, 1.5}, {{{{3, 48}}}, {{{6, 96}}}}), (Ends{{6}, {9}}));
}

TEST(EstimateFluid, BandwidthIsSharedInProportionToRankBandwidth) {
  // Each rank demands 40 bytes/s. The ranks get 8 and 24 of the 32 bytes/s.
  EXPECT_EQ(ends_of({"", 32, 0}, {{{{1, 40}}, 1, 10}, {{{3, 120}}, 1, 30}}), (Ends{{5}, {5}}));
}

TEST(EstimateFluid, SmallDemandsAreServedFully) {
  // The first rank demands 2 bytes/s, which is less than half of 18 bytes/s. The second rank gets the remaining 16
  // bytes/s.
  EXPECT_EQ(ends_of({"", 18, 0}, {{{{4, 8}}}, {{{4, 64}}}}), (Ends{{4}, {4}}));
  // The first rank gets the 2 bytes/s that it demands. Each of the other two ranks demands 12 bytes/s and gets 8
  // bytes/s, so it reads 32 of 48 bytes in 4 s. Then each of these two ranks gets 9 bytes/s.
  const Ends ends = ends_of({"", 18, 0}, {{{{4, 8}}}, {{{4, 48}}}, {{{4, 48}}}});
  EXPECT_EQ(ends[0][0], 4);
  EXPECT_DOUBLE_EQ(ends[1][0], 4 + 16.0 / 9);
  EXPECT_EQ(ends[1], ends[2]);
}

TEST(EstimateFluid, WorkWithoutReadsLeavesBandwidthToOtherRanks) {
  // Rank 0 computes for 2 s while rank 1 reads at 16 bytes/s. Then both ranks read at 12 bytes/s until rank 1 is done
  // at 2 + 16 / 12 s.
  const Ends ends = ends_of({"", 24, 0}, {{{{2, 0}, {3, 48}}}, {{{3, 48}}}});
  EXPECT_DOUBLE_EQ(ends[1][0], 2 + 16.0 / 12);
  EXPECT_DOUBLE_EQ(ends[0][1], 2 + 16.0 / 12 + 32.0 / 16);
}

TEST(EstimateFluid, EqualRanksFinishTogether) {
  const Works work{{0.1, 1}, {0.3, 7}, {0.7, 3}};
  const Ends ends = ends_of({"", 5, 2}, std::vector<Rank>(3, {work}));
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_EQ(ends[0], ends[2]);
}

/// A domain and ranks with random work.
struct RandomDomain {
  explicit RandomDomain(uint64_t seed) : rng(seed) {
    domain = {"", rng() % 4 == 0 ? 0 : figure(5, 60), rng() % 4 == 0 ? 0 : figure(0.5, 6)};
    ranks.resize(1 + rng() % 5);
    for (Rank& rank : ranks) {
      rank.cores = figure(0.5, 3);
      rank.bandwidth = figure(1, 40);
      rank.work.resize(rng() % 8);
      for (Work& work : rank.work) {
        work.seconds = figure(0, 2);
        work.bytes = rng() % 3 == 0 ? 0 : work.seconds * figure(0, 1) * rank.bandwidth;
      }
    }
  }
  double figure(double least, double most) { return std::uniform_real_distribution<double>(least, most)(rng); }
  std::mt19937_64 rng;
  Domain domain;
  std::vector<Rank> ranks;
};

double last_of(const Ends& ends) {
  double last = 0;
  for (const auto& rank : ends) last = std::max(last, rank.empty() ? 0 : rank.back());
  return last;
}

/// Checks bounds that hold for every kind of sharing. A rank in a shared domain is not faster than the same rank alone.
/// The ranks together do not exceed the limits of the domain. They are not slower than the same ranks one after
/// another.
TEST(EstimateFluid, TimesStayWithinBounds) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const RandomDomain random(seed);
    const Ends ends = ends_of(random.domain, random.ranks);
    double bytes = 0, core_seconds = 0, one_by_one = 0, longest = 0;
    for (size_t i = 0; i < random.ranks.size(); ++i) {
      const double alone = ends_of(random.domain, {random.ranks[i]}).at(0).empty()
                               ? 0
                               : ends_of(random.domain, {random.ranks[i]})[0].back();
      for (const Work& work : random.ranks[i].work) {
        bytes += work.bytes;
        core_seconds += work.seconds * random.ranks[i].cores;
      }
      EXPECT_TRUE(std::is_sorted(ends[i].begin(), ends[i].end()));
      EXPECT_GE(last_of({ends[i]}), alone * (1 - 1e-9)) << seed;
      longest = std::max(longest, alone);
      one_by_one += alone;
    }
    const double last = last_of(ends);
    EXPECT_GE(last, longest * (1 - 1e-9)) << seed;
    EXPECT_LE(last, one_by_one * (1 + 1e-9)) << seed << ": slower than the ranks one after another";
    EXPECT_GE(last * random.domain.bandwidth, random.domain.bandwidth > 0 ? bytes * (1 - 1e-9) : 0) << seed;
    EXPECT_GE(last * random.domain.cores, random.domain.cores > 0 ? core_seconds * (1 - 1e-9) : 0) << seed;
  }
}

/// Computes the end times by another method, which advances each rank in small steps of time.
std::vector<double> in_small_steps(const RandomDomain& random, double step) {
  const size_t count = random.ranks.size();
  std::vector<double> done(count, 0), progress(count, 0);
  std::vector<size_t> at(count, 0);
  for (double now = 0; now < 1e3; now += step) {
    double cores = 0;
    std::vector<size_t> active;
    for (size_t i = 0; i < count; ++i) {
      if (at[i] == random.ranks[i].work.size()) continue;
      active.push_back(i);
      cores += random.ranks[i].cores;
    }
    if (active.empty()) break;
    const double part = random.domain.cores > 0 ? std::min(1.0, random.domain.cores / cores) : 1;
    // Distributes the bandwidth in proportion to the bandwidths of the ranks. If a rank would get more than its demand,
    // the other ranks get the excess.
    std::vector<double> demand(count, 0), grant(count, 0);
    for (const size_t i : active)
      demand[i] = random.ranks[i].work[at[i]].bytes / random.ranks[i].work[at[i]].seconds * part;
    double rest = random.domain.bandwidth > 0 ? random.domain.bandwidth : 1e18;
    for (int round = 0; round < 60 && rest > 1e-12; ++round) {
      double weights = 0;
      for (const size_t i : active) weights += grant[i] < demand[i] ? random.ranks[i].bandwidth : 0;
      if (weights == 0) break;
      double poured = 0;
      for (const size_t i : active) {
        if (grant[i] >= demand[i]) continue;
        const double more = std::min(rest * random.ranks[i].bandwidth / weights, demand[i] - grant[i]);
        grant[i] = more >= demand[i] - grant[i] ? demand[i] : grant[i] + more;
        poured += more;
      }
      rest -= poured;
    }
    for (const size_t i : active) {
      const double pace = part * (demand[i] > 0 ? grant[i] / demand[i] : 1);
      progress[i] += step * pace;
      while (at[i] < random.ranks[i].work.size() && progress[i] >= random.ranks[i].work[at[i]].seconds) {
        progress[i] -= random.ranks[i].work[at[i]].seconds;
        ++at[i];
      }
      if (at[i] == random.ranks[i].work.size()) done[i] = now + step;
    }
  }
  return done;
}

TEST(EstimateFluid, EndTimesMatchSimulationInSmallSteps) {
  constexpr double kStep = 1e-3;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomDomain random(seed);
    const Ends ends = ends_of(random.domain, random.ranks);
    const std::vector<double> expected = in_small_steps(random, kStep);
    for (size_t i = 0; i < ends.size(); ++i) EXPECT_NEAR(last_of({ends[i]}), expected[i], 0.05) << seed;
  }
}

}  // namespace
}  // namespace shoal::tuning
