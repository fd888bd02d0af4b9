// Compares the expected expert load of devices with a simulation. In the simulation, tokens choose experts at random.
#include "machine/expert_load.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace shoal::machine {
namespace {

struct Load {
  std::vector<int64_t> experts;
  std::vector<double> seconds;
  int64_t used;
  int64_t tokens;
};

Load even(int devices, int64_t experts, int64_t used, int64_t tokens) {
  return {std::vector<int64_t>(static_cast<size_t>(devices), experts / devices),
          std::vector<double>(static_cast<size_t>(devices), 1.0), used, tokens};
}

double busiest(const Load& load) {
  return expected_busiest(load.experts, load.seconds, load.used, load.tokens);
}

double simulated(const Load& load, int rounds) {
  std::vector<size_t> owner;
  for (size_t d = 0; d < load.experts.size(); ++d) owner.insert(owner.end(), static_cast<size_t>(load.experts[d]), d);
  std::mt19937 random(5);
  double sum = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> busy(load.experts.size());
    for (int64_t token = 0; token < load.tokens; ++token) {
      for (int64_t slot = 0; slot < load.used; ++slot) {  // partial shuffle that draws the first `used` owners
        const auto first = static_cast<size_t>(slot);
        std::swap(owner[first], owner[std::uniform_int_distribution<size_t>(first, owner.size() - 1)(random)]);
        busy[owner[first]] += load.seconds[owner[first]];
      }
    }
    sum += *std::max_element(busy.begin(), busy.end());
  }
  return sum / rounds;
}

TEST(ExpectedBusiest, IsExactForOneToken) {
  EXPECT_NEAR(busiest(even(2, 128, 8, 1)), 5.05, 0.05);
  EXPECT_NEAR(busiest(even(4, 128, 8, 1)), 3.5, 0.05);
  EXPECT_NEAR(busiest(even(8, 128, 8, 1)), 2.5, 0.05);
  EXPECT_NEAR(busiest(even(4, 128, 4, 1)), 2.1, 0.05);
  // Each device has two of four experts. A token uses two experts. In 2 of 6 cases, one device has both of these
  // experts.
  EXPECT_NEAR(busiest(even(2, 4, 2, 1)), 2 * 2.0 / 6 + 1 * 4.0 / 6, 1e-9);
  EXPECT_NEAR(busiest(even(4, 4, 4, 1)), 1, 1e-9) << "all experts are used, one per device";
  EXPECT_NEAR(busiest({{4, 0}, {1, 1}, 2, 1}), 2, 1e-9) << "one device has all experts";
  EXPECT_EQ(busiest({{0, 0}, {1, 1}, 2, 1}), 0);
}

TEST(ExpectedBusiest, MatchesSimulation) {
  const std::vector<Load> loads{
      even(2, 128, 8, 1),
      even(8, 8, 2, 1),
      even(5, 60, 4, 1),
      {{100, 20, 8}, {1, 1, 1}, 8, 1},
      {{64, 48, 16}, {1, 2, 4}, 8, 1},
      {{3, 3, 2, 0}, {1, 0.5, 2, 1}, 2, 1},
      even(4, 128, 8, 2),
      even(8, 128, 8, 4),
      even(8, 16, 4, 7),
      even(4, 128, 8, 16),
      even(8, 128, 8, 64),
      even(16, 256, 8, 512),
      even(2, 8, 2, 100),
      {{64, 48, 16}, {1, 1.3, 4}, 8, 64},
      {{6, 2}, {1, 3}, 2, 50},
  };
  for (const Load& load : loads) {
    const double expected = simulated(load, load.tokens > 100 ? 2000 : 20000);
    EXPECT_NEAR(busiest(load) / expected, 1, load.tokens == 1 ? 0.01 : 0.03)
        << fmt::format("{} devices, {} of {}, {} tokens", load.experts.size(), load.used,
                       std::accumulate(load.experts.begin(), load.experts.end(), int64_t{0}), load.tokens);
  }
}

TEST(ExpectedExcess, ShrinksWithLargerBatches) {
  double before = 10;
  for (const int64_t tokens : {1, 4, 16, 64, 256, 1024}) {
    const Load load = even(8, 128, 8, tokens);
    const double mean = static_cast<double>(tokens);
    const double part = expected_excess(load.experts, load.seconds, load.used, tokens) / mean;
    EXPECT_LT(part, before) << tokens;
    before = part;
  }
  EXPECT_LT(before, 0.05);
  // The same device is always the busiest, so the expected excess is almost zero.
  const Load one{{120, 8}, {10, 0.1}, 8, 64};
  EXPECT_NEAR(expected_excess(one.experts, one.seconds, 8, 64), 0, 1);
  EXPECT_GE(expected_excess(one.experts, one.seconds, 8, 64), 0);
}

}  // namespace
}  // namespace shoal::machine
