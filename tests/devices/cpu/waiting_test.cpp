#include "devices/cpu/waiting.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "devices/cpu/topology.h"
#include "devices/cpu/work_queue.h"

namespace shoal::cpu {
namespace {

TEST(MaySpin, OnlyWhileEveryThreadHasACore) {
  const int cores = usable_cores();
  ASSERT_TRUE(may_spin(Waiter::kHost)) << "a backend of another test is still there";
  {
    const ThreadCount all(cores);
    EXPECT_TRUE(may_spin(Waiter::kWorker));
    EXPECT_FALSE(may_spin(Waiter::kHost)) << "the host is one thread more";
    const ThreadCount one(1);
    EXPECT_FALSE(may_spin(Waiter::kWorker));
  }
  EXPECT_TRUE(may_spin(Waiter::kHost));
}

TEST(Counter, EveryWaiterSeesItsValue) {
  for (int crowd : {0, 1000}) {  // spinning, and parking at once
    const ThreadCount count(crowd);
    Counter counter;
    constexpr uint64_t kSteps = 2000;
    std::vector<uint64_t> data(kSteps + 1, 0);  // published by the counter
    std::vector<std::thread> waiters;
    for (int w = 0; w < 3; ++w) {
      waiters.emplace_back([&] {
        for (uint64_t step = 1; step <= kSteps; ++step) {
          counter.wait_for(step, Waiter::kWorker);
          if (data[step] != step) return void(ADD_FAILURE() << "value " << step << " is not visible");
        }
      });
    }
    for (uint64_t step = 1; step <= kSteps; ++step) {
      data[step] = step;
      counter.advance_to(step);
    }
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(counter.value(), kSteps);
  }
}

TEST(WorkQueue, FirstInFirstOutBetweenTwoThreads) {
  WorkQueue<uint64_t, 4> queue(2);
  Counter pushed;
  constexpr uint64_t kItems = 50000;
  std::thread popper([&] {
    for (uint64_t i = 0; i < kItems; ++i) {
      pushed.wait_for(i + 1, Waiter::kWorker);
      ASSERT_EQ(queue.pop(), i);
    }
  });
  for (uint64_t i = 0; i < kItems; ++i) {
    queue.push(i);
    pushed.advance_to(i + 1);
  }
  popper.join();
}

}  // namespace
}  // namespace shoal::cpu
