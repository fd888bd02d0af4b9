#include "devices/cpu/waiting.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "devices/cpu/topology.h"
#include "devices/cpu/work_queue.h"

namespace shoal::cpu {
namespace {

TEST(MaySpin, IsTrueOnlyWhileEveryThreadHasACore) {
  const int cores = usable_cores();
  ASSERT_TRUE(may_spin(Waiter::kHost)) << "a backend of another test still exists";
  {
    const ThreadCount all(cores);
    EXPECT_TRUE(may_spin(Waiter::kWorker));
    EXPECT_FALSE(may_spin(Waiter::kHost)) << "the host is an additional thread";
    const ThreadCount one(1);
    EXPECT_FALSE(may_spin(Waiter::kWorker));
  }
  EXPECT_TRUE(may_spin(Waiter::kHost));
}

TEST(Counter, WaitersSeePublishedData) {
  for (int crowd : {0, 1000}) {  // 0: waiting threads spin; 1000: waiting threads park at once
    const ThreadCount count(crowd);
    Counter counter;
    constexpr uint64_t kSteps = 2000;
    std::vector<uint64_t> data(kSteps + 1, 0);  // the counter publishes the data to the waiting threads
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

/// A host thread yields in a loop. Another thread on the same core spins for 20 ms. Returns the number of iterations of
/// the host thread's loop during these 20 ms.
int turns_beside_a_spinning_thread() {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(sched_getcpu(), &core);
  std::atomic<bool> done{false};
  std::atomic<int> turns{0};
  int while_spinning = 0;
  std::thread host([&] {
    sched_setaffinity(0, sizeof(core), &core);
    for (; !done; ++turns) std::this_thread::yield();
  });
  std::thread([&] {  // a new thread, because after a slow yield a thread does not yield for some time
    sched_setaffinity(0, sizeof(core), &core);
    while (turns == 0) std::this_thread::yield();
    const Counter never;
    const int before = turns;
    EXPECT_FALSE(never.spin_for(1, Waiter::kWorker, std::chrono::milliseconds(20)));
    while_spinning = turns - before;
  })
      .join();
  done = true;
  host.join();
  return while_spinning;
}

TEST(Counter, SpinningThreadsYieldToHostThreads) {
  constexpr int kMany = 200, kTries = 200;
  const ThreadCount all(usable_cores());
  int most = 0;  // result of the best try, because other programs may use the core
  for (int i = 0; i < kTries && most < kMany; ++i) most = std::max(most, turns_beside_a_spinning_thread());
  EXPECT_GE(most, kMany);
}

TEST(Counter, ParkedThreadSleepsUntilItsValueIsReached) {
  const ThreadCount crowd(1000);  // more threads than cores, so that no thread spins
  Counter counter;
  constexpr uint64_t kTarget = 200;
  std::atomic<bool> begun{false};
  int64_t sleeps = -1;
  std::thread waiter([&] {
    rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    begun = true;
    counter.wait_for(kTarget, Waiter::kWorker);
    getrusage(RUSAGE_THREAD, &after);
    sleeps = after.ru_nvcsw - before.ru_nvcsw;
  });
  while (!begun) std::this_thread::yield();
  for (uint64_t value = 1; value <= kTarget; ++value) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // enough time for the thread to wake and sleep again
    counter.advance_to(value);
  }
  waiter.join();
  EXPECT_LT(sleeps, 20) << "the thread was woken for other values";
}

TEST(Counter, ThreadsParkedForDifferentValuesAllWake) {
  const ThreadCount crowd(1000);
  for (int round = 0; round < 200; ++round) {
    Counter counter;
    std::vector<std::thread> waiters;
    for (uint64_t target : {3, 1, 5, 2, 5}) {
      waiters.emplace_back([&counter, target] {
        counter.wait_for(target, Waiter::kWorker);
        EXPECT_GE(counter.value(), target);
      });
    }
    for (uint64_t value = 1; value <= 5; ++value) counter.advance_to(value);
    for (std::thread& waiter : waiters) waiter.join();
  }
}

TEST(WorkQueue, KeepsOrderBetweenTwoThreads) {
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
