// Cores of one computer for several processes.
#include "processes/core_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <numeric>
#include <thread>

namespace shoal {
namespace {

using testing::IsEmpty;
using Shares = std::vector<std::vector<int>>;

/// Nodes with these numbers of cores; as usual, the second hardware threads are numbered behind all first ones.
std::vector<HardwareThread> machine(const std::vector<int>& nodes, int per_core) {
  const int cores = std::accumulate(nodes.begin(), nodes.end(), 0);
  std::vector<HardwareThread> threads;
  for (int round = 0; round < per_core; ++round) {
    int core = 0;
    for (size_t node = 0; node < nodes.size(); ++node) {
      for (int i = 0; i < nodes[node]; ++i, ++core)
        threads.push_back({round * cores + core, core, static_cast<int>(node)});
    }
  }
  return threads;
}

TEST(CoreShares, HardwareThreadsOfACoreStayTogether) {
  EXPECT_EQ(divide_threads(machine({4}, 2), 2), (Shares{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  EXPECT_EQ(divide_threads(machine({4}, 2), 4), (Shares{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(divide_threads(machine({3}, 2), 2), (Shares{{0, 3}, {1, 4, 2, 5}}));
}

TEST(CoreShares, AreAsEvenAsWholeCoresAre) {
  EXPECT_EQ(divide_threads(machine({5}, 1), 2), (Shares{{0, 1}, {2, 3, 4}}));
  EXPECT_EQ(divide_threads(machine({5}, 1), 1), (Shares{{0, 1, 2, 3, 4}}));
}

// Nodes whose cores are numbered in turns.
TEST(CoreShares, NodesStayTogether) {
  std::vector<HardwareThread> threads;
  for (int i = 0; i < 8; ++i) threads.push_back({i, i, i % 2});
  EXPECT_EQ(divide_threads(threads, 2), (Shares{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(divide_threads(threads, 4), (Shares{{0, 2}, {4, 6}, {1, 3}, {5, 7}}));
}

TEST(CoreShares, BeginWithANodeThatBeginsNearby) {
  EXPECT_EQ(divide_threads(machine({4, 6}, 1), 2), (Shares{{0, 1, 2, 3}, {4, 5, 6, 7, 8, 9}}));
  EXPECT_EQ(divide_threads(machine({2, 8}, 1), 2), (Shares{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}})) << "too far";
  EXPECT_EQ(divide_threads(machine({4, 4}, 1), 3), (Shares{{0, 1}, {2, 3, 4}, {5, 6, 7}}));
}

TEST(CoreShares, OfMoreProcessesThanCores) {
  EXPECT_EQ(divide_threads(machine({2}, 2), 3), (Shares{{0}, {2}, {1, 3}}));
  EXPECT_THAT(divide_threads(machine({2}, 2), 5), IsEmpty());
  EXPECT_THAT(divide_threads({}, 1), IsEmpty());
}

// Every share has something and every hardware thread is in one of them.
TEST(CoreShares, NothingIsLeftOut) {
  for (const int per_core : {1, 2}) {
    for (const auto& nodes : {std::vector{1, 1}, {3, 5}, {7, 8, 9}, {1, 30}, {16, 16, 16, 16}}) {
      const std::vector<HardwareThread> all = machine(nodes, per_core);
      for (size_t processes = 1; processes <= all.size(); ++processes) {
        std::vector<bool> has(all.size());
        const Shares shares = divide_threads(all, processes);
        ASSERT_EQ(shares.size(), processes);
        for (const auto& share : shares) {
          EXPECT_FALSE(share.empty()) << processes;
          for (const int number : share) {
            EXPECT_FALSE(has[static_cast<size_t>(number)]);
            has[static_cast<size_t>(number)] = true;
          }
        }
        EXPECT_THAT(has, testing::Each(true));
      }
    }
  }
}

TEST(CoreShares, UsableThreadsAreThoseOfTheCaller) {
  std::thread([] {
    const std::vector<HardwareThread> all = usable_threads();
    ASSERT_FALSE(all.empty());
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(all.back().number, &last);
    ASSERT_EQ(sched_setaffinity(0, sizeof(last), &last), 0);
    const std::vector<HardwareThread> one = usable_threads();
    ASSERT_EQ(one.size(), 1U);
    EXPECT_EQ(one[0].number, all.back().number);
    EXPECT_LE(one[0].core, one[0].number);
  }).join();
}

}  // namespace
}  // namespace shoal
