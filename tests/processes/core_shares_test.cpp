// Tests how the cores of one computer are divided among several processes.
#include "processes/core_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace shoal {
namespace {

using testing::IsEmpty;
using testing::Not;
using Shares = std::vector<std::vector<int>>;

/// A machine whose NUMA node i has nodes[i] cores. The first hardware threads of all cores have the lowest numbers. The
/// numbers of the second hardware threads follow.
std::vector<UsableCore> machine(const std::vector<int>& nodes, int per_core) {
  const int cores = std::accumulate(nodes.begin(), nodes.end(), 0);
  std::vector<UsableCore> all;
  for (size_t node = 0; node < nodes.size(); ++node) {
    for (int i = 0; i < nodes[node]; ++i) {
      UsableCore& core = all.emplace_back(UsableCore{{}, static_cast<int>(node)});
      const int number = static_cast<int>(all.size()) - 1;
      for (int thread = 0; thread < per_core; ++thread) core.threads.push_back(thread * cores + number);
    }
  }
  return all;
}

TEST(CoreShares, HardwareThreadsOfACoreStayTogether) {
  EXPECT_EQ(divide_threads(machine({4}, 2), 1), (Shares{{0, 4, 1, 5, 2, 6, 3, 7}}));
  EXPECT_EQ(divide_threads(machine({4}, 2), 2), (Shares{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  EXPECT_EQ(divide_threads(machine({3}, 2), 2), (Shares{{0, 3}, {1, 4, 2, 5}}));
  EXPECT_EQ(divide_threads(machine({4}, 2), 4), (Shares{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(CoreShares, BeginAtNearbyNumaNodeBoundary) {
  EXPECT_EQ(divide_threads(machine({4, 6}, 1), 2), (Shares{{0, 1, 2, 3}, {4, 5, 6, 7, 8, 9}}));
  EXPECT_EQ(divide_threads(machine({2, 8}, 1), 2), (Shares{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}}))
      << "the boundary of the NUMA nodes is too far from the middle";
  EXPECT_EQ(divide_threads(machine({4, 4}, 1), 3), (Shares{{0, 1}, {2, 3, 4}, {5, 6, 7}}));
  for (const auto& [first, second] : {std::pair{47, 48}, {48, 47}, {31, 32}}) {
    const Shares shares = divide_threads(machine({first, second}, 2), 2);
    EXPECT_EQ(shares[0].size(), static_cast<size_t>(2 * first));
    EXPECT_EQ(shares[1].size(), static_cast<size_t>(2 * second));
  }
}

TEST(CoreShares, DivideHardwareThreadsIfProcessesOutnumberCores) {
  EXPECT_EQ(divide_threads(machine({2}, 2), 3), (Shares{{0}, {2}, {1, 3}}));
  EXPECT_THAT(divide_threads(machine({2}, 2), 5), IsEmpty());
  EXPECT_THAT(divide_threads({}, 1), IsEmpty());
}

TEST(CoreShares, ContainEveryThreadExactlyOnce) {
  for (const int per_core : {1, 2}) {
    for (const auto& nodes : {std::vector{1, 1}, {3, 5}, {7, 8, 9}, {1, 30}, {16, 16, 16, 16}}) {
      const std::vector<UsableCore> all = machine(nodes, per_core);
      for (size_t processes = 1; processes <= all.size() * static_cast<size_t>(per_core); ++processes) {
        std::vector<int> given;
        for (const auto& share : divide_threads(all, processes)) {
          EXPECT_THAT(share, Not(IsEmpty())) << processes;
          given.insert(given.end(), share.begin(), share.end());
        }
        std::sort(given.begin(), given.end());
        std::vector<int> wanted(all.size() * static_cast<size_t>(per_core));
        std::iota(wanted.begin(), wanted.end(), 0);
        EXPECT_EQ(given, wanted) << processes;
      }
    }
  }
}

TEST(CoreShares, UsableCoresRespectThreadAffinity) {
  std::thread([] {
    const std::vector<UsableCore> all = usable_cores();
    ASSERT_FALSE(all.empty());
    const UsableCore one{{all.back().threads.back()}, all.back().node};
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(one.threads.front(), &last);
    ASSERT_EQ(sched_setaffinity(0, sizeof(last), &last), 0);
    EXPECT_EQ(usable_cores(), std::vector<UsableCore>{one});
  }).join();
}

}  // namespace
}  // namespace shoal
