// Tests of Rendezvous. Waiting ranks spin or park. There may be more ranks than CPU cores. fail() and a time-out wake
// parked ranks with an error.
#include "collectives/host/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "processes/shared_memory.h"

namespace shoal::collectives::host {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const Call kCall{.what = "test"};

class RendezvousMeetings : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  Options options() const { return {.timeout = milliseconds(20000), .spin = microseconds(std::get<1>(GetParam()))}; }
};

// The ranks write plain integers, not atomics. After each meeting, every rank must see all writes from before the
// meeting and no write from after the meeting.
TEST_P(RendezvousMeetings, PublishEarlierWrites) {
  constexpr int kSteps = 500;
  Rendezvous rendezvous(ranks(), options());
  std::vector<std::array<int, kCacheLine>> numbers(ranks());
  std::vector<int> wrong(ranks());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      for (int step = 1; step <= kSteps; ++step) {
        numbers[rank][0] = step;
        rendezvous.meet(rank, kCall);
        for (const auto& number : numbers) wrong[rank] += number[0] != step;
        rendezvous.meet(rank, kCall);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

INSTANTIATE_TEST_SUITE_P(RanksAndSpin, RendezvousMeetings,
                         testing::Combine(testing::Values(1, 2, 5, 16), testing::Values(0, 50)));

TEST(Rendezvous, FirstFailureWakesParkedRankWithItsMessage) {
  Rendezvous rendezvous(2, {.timeout = milliseconds(20000), .spin = microseconds(0)});
  std::string message;
  std::thread waiting([&] {
    try {
      rendezvous.meet(0, kCall);
    } catch (const CommError& error) {
      message = error.what();
    }
  });
  std::this_thread::sleep_for(milliseconds(30));
  rendezvous.fail("first");
  rendezvous.fail("second");
  waiting.join();
  EXPECT_EQ(message, "first");
  EXPECT_THAT([&] { rendezvous.meet(1, kCall); }, testing::ThrowsMessage<CommError>("first"));
}

TEST(Rendezvous, TimeOutErrorNamesWaitingTimeAndMissingRanks) {
  Rendezvous rendezvous(3, {.timeout = milliseconds(50), .spin = microseconds(0)});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT([&] { rendezvous.meet(1, kCall); }, testing::ThrowsMessage<CommError>(testing::AllOf(testing::HasSubstr(
                                                      "[all_reduce test] rank 0, 2 of 3 did not arrive within 0.0"))));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(50));
}

/// A rendezvous of two ranks in shared memory. Each object has its own mapping of this memory, as a separate process
/// would.
class SharedRendezvous {
 public:
  explicit SharedRendezvous(SharedMemory memory) : memory_(std::move(memory)) {}
  static constexpr size_t kSize = sizeof(RendezvousState) + 2 * sizeof(Seat);
  Rendezvous& operator*() { return rendezvous_; }

 private:
  SharedMemory memory_;
  Rendezvous rendezvous_{*reinterpret_cast<RendezvousState*>(memory_.data()),
                         {reinterpret_cast<Seat*>(memory_.data() + sizeof(RendezvousState)), 2},
                         {.timeout = milliseconds(20000), .spin = microseconds(0)},
                         [](std::span<const int>, const Call&, std::chrono::nanoseconds) {}};
};

// The same memory is mapped at two addresses. A parked rank also polls once per second. The test allows less than a
// second, so only a wake-up can end the wait.
TEST(Rendezvous, WakesRanksThatMapMemoryAtAnotherAddress) {
  SharedMemory memory(SharedRendezvous::kSize);
  auto opened = SharedMemory::open(memory.address(), SharedRendezvous::kSize);
  ASSERT_TRUE(opened);
  SharedRendezvous here(std::move(memory)), there(std::move(*opened));
  std::string message;
  std::chrono::nanoseconds met{}, failed{};
  std::thread waiting([&] {
    const auto start = std::chrono::steady_clock::now();
    (*there).meet(1, kCall);
    met = std::chrono::steady_clock::now() - start;
    try {
      (*there).meet(1, kCall);
    } catch (const CommError& error) {
      message = error.what();
    }
    failed = std::chrono::steady_clock::now() - start - met;
  });
  std::this_thread::sleep_for(milliseconds(50));
  (*here).meet(0, kCall);
  std::this_thread::sleep_for(milliseconds(50));
  (*here).fail(std::string(5000, 'x'));
  waiting.join();
  EXPECT_LT(met, milliseconds(900));
  EXPECT_LT(failed, milliseconds(900));
  EXPECT_EQ(message, std::string(sizeof(RendezvousState::failure) - 1, 'x'))
      << "the message is cut to the available space";
}

TEST(Rendezvous, FailureMayHaveEmptyMessage) {
  Rendezvous rendezvous(1, {});
  rendezvous.meet(0, kCall);
  rendezvous.fail("");
  EXPECT_THROW(rendezvous.meet(0, kCall), CommError);
}

}  // namespace
}  // namespace shoal::collectives::host
