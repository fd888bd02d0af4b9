// Cores of one computer for several processes.
#include "processes/core_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace shoal {
namespace {

using testing::IsEmpty;
using Shares = std::vector<std::vector<int>>;

TEST(CoreShares, HardwareThreadsOfACoreStayTogether) {
  const Shares cores{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_EQ(divide_threads(cores, 1), (Shares{{0, 4, 1, 5, 2, 6, 3, 7}}));
  EXPECT_EQ(divide_threads(cores, 2), (Shares{{0, 4, 1, 5}, {2, 6, 3, 7}}));
  EXPECT_EQ(divide_threads(cores, 3), (Shares{{0, 4, 1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(divide_threads(cores, 4), cores);
}

TEST(CoreShares, OfMoreProcessesThanCores) {
  EXPECT_EQ(divide_threads({{0, 2}, {1, 3}}, 3), (Shares{{0, 2}, {1}, {3}}));
  EXPECT_THAT(divide_threads({{0, 2}, {1, 3}}, 5), IsEmpty());
  EXPECT_THAT(divide_threads({}, 1), IsEmpty());
}

TEST(CoreShares, UsableThreadsAreThoseOfTheCaller) {
  std::thread([] {
    const Shares all = usable_threads();
    ASSERT_FALSE(all.empty());
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(all.back().back(), &last);
    ASSERT_EQ(sched_setaffinity(0, sizeof(last), &last), 0);
    EXPECT_EQ(usable_threads(), (Shares{{all.back().back()}}));
  }).join();
}

}  // namespace
}  // namespace shoal
