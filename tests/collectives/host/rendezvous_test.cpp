// Ranks that meet by spinning and by parking, more ranks than cores, and the two ways to fail while parked.
#include "collectives/host/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/error.h"

namespace shoal::collectives::host {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

const Call kCall{.what = "test"};

class RendezvousTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  Options options() const { return {.timeout = milliseconds(20000), .spin = microseconds(std::get<1>(GetParam()))}; }
};

// Unsynchronised numbers: every rank must see what the others wrote before the meeting, and nothing newer.
TEST_P(RendezvousTest, WhatWasWrittenBeforeIsVisibleAfter) {
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

INSTANTIATE_TEST_SUITE_P(RanksAndSpin, RendezvousTest,
                         testing::Combine(testing::Values(1, 2, 5, 16), testing::Values(0, 50)));

TEST(Rendezvous, FailWakesAParkedRankWithTheFirstMessage) {
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

TEST(Rendezvous, TimeOutSaysHowLongAndForWhom) {
  Rendezvous rendezvous(3, {.timeout = milliseconds(50), .spin = microseconds(0)});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT([&] { rendezvous.meet(1, kCall); }, testing::ThrowsMessage<CommError>(testing::AllOf(testing::HasSubstr(
                                                      "[all_reduce test] rank 0, 2 of 3 did not arrive within 0.0"))));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(50));
}

TEST(Rendezvous, AFailureWithoutAReasonIsAFailureToo) {
  Rendezvous rendezvous(1, {});
  rendezvous.meet(0, kCall);
  rendezvous.fail("");
  EXPECT_THROW(rendezvous.meet(0, kCall), CommError);
}

}  // namespace
}  // namespace shoal::collectives::host
