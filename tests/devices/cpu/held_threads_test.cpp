// Tests of teams in which some threads do not run, for example because other programs use the cores. A signal handler
// holds (stops) a thread at an arbitrary instruction.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <numeric>
#include <thread>
#include <vector>

#include "devices/cpu/claims.h"
#include "devices/cpu/team.h"
#include "devices/cpu/topology.h"
#include "tests/support/sanitized.h"

namespace shoal::cpu {
namespace {

using test::kThreadSanitizer;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::atomic<int> threads_held{0};
std::atomic<bool> held{false};
std::atomic<bool> expired{false};
static_assert(std::atomic<int>::is_always_lock_free);

void hold(int) {
  ++threads_held;
  const auto deadline = Clock::now() + 20s;
  while (held) {
    if (Clock::now() > deadline) expired = true, held = false;
    std::this_thread::sleep_for(100us);
  }
  --threads_held;
}

/// Holds threads during its lifetime. If another thread waits for a held thread, the test fails after 20 seconds. Does
/// nothing under ThreadSanitizer, because ThreadSanitizer delays a signal handler until the thread's next call of the C
/// library. Some threads never make such a call.
class Hold {
 public:
  explicit Hold(const std::vector<pthread_t>& threads) {
    struct sigaction action {};
    action.sa_handler = hold;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, &before_);
    held = true;
    if (kThreadSanitizer) return;
    for (const pthread_t thread : threads) pthread_kill(thread, SIGUSR2);
    while (threads_held < static_cast<int>(threads.size())) std::this_thread::yield();
  }
  ~Hold() {
    held = false;
    while (threads_held > 0) std::this_thread::yield();
    sigaction(SIGUSR2, &before_, nullptr);
    EXPECT_FALSE(expired) << "the team waited for a held thread";
    expired = false;
  }

 private:
  struct sigaction before_ {};
};

/// Returns all threads of a team except the calling thread. The caller must be inside Team::lead().
std::vector<pthread_t> helpers_of(Team& team) {
  static std::vector<pthread_t> found;
  static std::atomic<int> arrived;
  usable_cores();  // the first call locks a mutex; a held thread must not own this mutex
  found.assign(static_cast<size_t>(team.size()), pthread_self());
  arrived = 0;
  Tensor node;
  // Each part waits for all other parts, so that each thread runs exactly one part. (Parts of real kernels must not
  // wait for each other.)
  const Step step{[](const TeamContext& ctx, Tensor&) {
                    found[static_cast<size_t>(ctx.part)] = pthread_self();
                    ++arrived;
                    while (arrived < ctx.parts) std::this_thread::yield();
                  },
                  &node};
  team.run({&step, 1}, team.size());
  std::erase_if(found, [](pthread_t thread) { return pthread_equal(thread, pthread_self()); });
  return found;
}

/// A chain of steps. Each step computes its slots from the sum of all slots of the previous step.
struct Chain {
  static constexpr int kParts = 3;
  explicit Chain(int length) : nodes(static_cast<size_t>(length)), slots(static_cast<size_t>(length + 1) * kParts, 1) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      nodes[i].id = static_cast<int>(i);
      steps.push_back({run, &nodes[i], reinterpret_cast<std::byte*>(slots.data() + i * kParts), i % 5 == 4});
    }
  }
  static void run(const TeamContext& ctx, Tensor&) {
    auto* slots = reinterpret_cast<uint64_t*>(ctx.workspace);
    const uint64_t sum = std::accumulate(slots, slots + kParts, uint64_t{0});
    const auto [begin, end] = share(ctx, kParts);
    for (int64_t i = begin; i < end; ++i) slots[kParts + i] = sum * 7 + static_cast<uint64_t>(i);
  }
  std::vector<Tensor> nodes;
  std::vector<uint64_t> slots;
  std::vector<Step> steps;
};

std::vector<uint64_t> expected(int length) {
  Chain chain(length);
  Team team(1);
  team.lead([&] { team.run(chain.steps, 1); });
  return chain.slots;
}

TEST(HeldThreads, OtherThreadsDoTheWorkOfHeldThreads) {
  constexpr int kLength = 1000;
  const std::vector<uint64_t> want = expected(kLength);
  Team team(Chain::kParts);
  team.lead([&] {
    std::vector<pthread_t> helpers = helpers_of(team);
    ASSERT_EQ(helpers.size(), 2U);
    for (; !helpers.empty(); helpers.pop_back()) {  // round 1 holds both helpers, round 2 holds one helper
      Chain chain(kLength);
      const Hold hold(helpers);
      EXPECT_EQ(team.run(chain.steps, Chain::kParts), nullptr);
      EXPECT_EQ(chain.slots, want);
    }
    Chain chain(kLength);
    team.run(chain.steps, Chain::kParts);
    EXPECT_EQ(chain.slots, want) << "after threads were released late";
  });
}

TEST(HeldThreads, ThreadsMayBeHeldAtAnyMoment) {
  constexpr int kLength = 200;
  const std::vector<uint64_t> want = expected(kLength);
  Team team(Chain::kParts);
  team.lead([&] {
    const std::vector<pthread_t> helpers = helpers_of(team);
    constexpr int kHolds = 60;
    std::atomic<int> holds{0};
    // The leading thread is also held. Each Hold object lives for about a millisecond.
    std::vector<pthread_t> all = helpers;
    all.push_back(pthread_self());
    std::thread tormentor([&] {
      for (; holds < kHolds; ++holds) {
        const Hold hold({all[static_cast<size_t>(holds) % all.size()]});
        std::this_thread::sleep_for(1ms);
      }
    });
    while (holds < kHolds) {
      Chain chain(kLength);
      EXPECT_EQ(team.run(chain.steps, Chain::kParts), nullptr);
      EXPECT_EQ(chain.slots, want);
    }
    tormentor.join();
  });
}

/// A piece is a range of items that one thread takes at a time. One thread waits at item kHeld until all items of all
/// other pieces have run.
TEST(HeldThreads, HeldThreadDelaysOnlyItemsThatItClaimed) {
  constexpr int64_t kItems = 200, kHeld = 100;  // first item of part 1; the first piece of part 1 has 50 items
  static std::atomic<int64_t> others;
  static std::atomic<bool> missed;
  static std::vector<std::atomic<int>> runs(kItems);
  const auto run = [](const TeamContext& ctx, Tensor&) {
    for_shared(ctx, kItems, [](int64_t item) {
      ++runs[static_cast<size_t>(item)];
      if (item < kHeld || item >= kHeld + 50) ++others;
      const auto deadline = Clock::now() + 20s;
      while (item == kHeld && others < kItems - 50 && !missed) {
        missed = Clock::now() > deadline;
        std::this_thread::yield();
      }
    });
  };
  Tensor node;
  const Step step{run, &node};
  for (int round = 1; round <= 20; ++round) {
    others = 0;
    Team team(2);  // in a new team, all threads are awake
    team.lead([&] { team.run({&step, 1}, 2); });
    for (const auto& count : runs) ASSERT_EQ(count, round);
  }
  EXPECT_FALSE(missed) << "the other pieces of the part waited for the held thread";
}

TEST(HeldThreads, WaitingThreadsSleep) {
  static std::vector<pthread_t> threads;
  static std::atomic<int64_t> used;
  const auto run = [](const TeamContext& ctx, Tensor&) {
    if (ctx.part != 0) return;
    const bool first = pthread_equal(threads[0], pthread_self());
    clockid_t clock;
    timespec before, after;
    ASSERT_EQ(pthread_getcpuclockid(threads[first ? 1 : 0], &clock), 0);
    clock_gettime(clock, &before);
    std::this_thread::sleep_for(200ms);
    clock_gettime(clock, &after);
    used = (after.tv_sec - before.tv_sec) * 1'000'000'000 + after.tv_nsec - before.tv_nsec;
  };
  Tensor node;
  const Step step{run, &node};
  Team team(2);
  team.lead([&] {
    threads = helpers_of(team);
    threads.push_back(pthread_self());
    team.run({&step, 1}, 2);
  });
  EXPECT_LT(used, 20'000'000) << "nanoseconds of CPU time in 200 milliseconds";
}

TEST(Claims, EachPieceHasHalfOfRemainingItems) {
  std::vector<int64_t> sizes;
  for (int64_t piece = 0, end = 0; end < 13; ++piece) {
    const auto [first, last] = piece_of(13, piece);
    EXPECT_EQ(first, end);
    sizes.push_back(last - first);
    end = last;
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{7, 3, 2, 1}));
  for (const int64_t count : {0, 1, 13}) {
    for (const int64_t piece : {10, 70}) EXPECT_EQ(piece_of(count, piece), (std::pair<int64_t, int64_t>(count, count)));
  }
}

TEST(Claims, PartsAreClaimedOncePerStepInStepOrder) {
  Claims claims(2);
  EXPECT_TRUE(claims.claim(0, 5));
  EXPECT_FALSE(claims.claim(0, 5));
  EXPECT_FALSE(claims.claim(0, 4));
  EXPECT_EQ(claims.next_piece(0, 5), 0);
  EXPECT_EQ(claims.next_piece(1, 5), 0) << "the part was not claimed";
  EXPECT_FALSE(claims.claim(1, 4));
  EXPECT_TRUE(claims.claim(1, 5));
  EXPECT_EQ(claims.next_piece(1, 5), 1);
  EXPECT_TRUE(claims.claim(1, 6));
  EXPECT_EQ(claims.next_piece(1, 6), 0);
}

}  // namespace
}  // namespace shoal::cpu
