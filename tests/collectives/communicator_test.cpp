// Tests of Communicator::validate() and of the communicator options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "tests/collectives/mesh.h"

namespace shoal::collectives {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class Validate : public testing::Test {
 protected:
  void expect_refused(int rank, const Call& call, const std::string& why) {
    EXPECT_THAT([&] { communicator_->enqueue(rank, call); }, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  }
  float data_[64] = {};
  Mesh mesh_{2};
  std::unique_ptr<Communicator> communicator_ = mesh_.communicator();
};

TEST_F(Validate, RefusesInvalidCallsAndNamesReason) {
  const Call good{Collective::kAllReduce, DType::kF32, data_, data_, 8, {}, 0, "x"};
  const auto with = [&](auto change) {
    Call call = good;
    change(call);
    return call;
  };
  expect_refused(2, good, "[all_reduce x] no rank 2 in a mesh of 2");
  expect_refused(-1, good, "no rank -1");
  expect_refused(0, with([](Call& c) { c.kind = Collective::kCount; }), "unknown collective");
  expect_refused(0, with([](Call& c) { c.dtype = DType::kCount; }), "unknown dtype");
  expect_refused(0, with([](Call& c) { c.what = nullptr; }), "Call::what");
  expect_refused(0, with([](Call& c) { c.dtype = DType::kQ8_0, c.count = 32; }), "q8_0 cannot be summed");
  expect_refused(0, with([](Call& c) { c.dtype = DType::kI64; }), "i64 cannot be summed");
  expect_refused(0, with([](Call& c) { c.count = -1; }), "negative count -1");
  expect_refused(0, with([](Call& c) { c.in = nullptr; }), "`in` is null");
  expect_refused(0, with([](Call& c) { c.out = nullptr; }), "`out` is null");
  expect_refused(0, with([](Call& c) { c.kind = Collective::kBroadcast, c.root = 2; }), "no root 2");
  EXPECT_EQ(mesh_.errors(), std::vector<std::optional<std::string>>(2)) << "a refused call must not be queued";
}

TEST_F(Validate, RefusesWrongNumberOfCountsAndInvalidCounts) {
  const std::vector<int64_t> three{1, 2, 3}, negative{1, -2}, odd{32, 33};
  const Call gather{Collective::kAllGather, DType::kF32, data_, data_, 0, three, 0, "x"};
  expect_refused(0, gather, "[all_gather x] expected 2 counts for 2 ranks, got 3");
  Call call = gather;
  call.kind = Collective::kAllToAll;
  expect_refused(0, call, "expected 4 counts for 2 ranks, got 3");
  call.kind = Collective::kReduceScatter;
  call.counts = negative;
  expect_refused(0, call, "negative count -2");
  call = gather;
  call.dtype = DType::kQ8_0;
  call.counts = odd;
  expect_refused(0, call, "count 33 is not a multiple of the 32 elements of a q8_0 block");
  call = {Collective::kAllReduce, DType::kF32, data_, data_, 2, odd, 0, "x"};
  expect_refused(0, call, "expected 0 counts");
}

TEST_F(Validate, AllowsNullPointersForRanksWithoutElements) {
  const std::vector<int64_t> counts{0, 4};
  Call calls[2] = {{Collective::kAllGather, DType::kF32, nullptr, data_, 0, counts, 0, "x"},
                   {Collective::kAllGather, DType::kF32, data_ + 16, data_ + 32, 0, counts, 0, "x"}};
  for (int rank = 0; rank < 2; ++rank) communicator_->enqueue(rank, calls[rank]);
  EXPECT_NO_THROW(mesh_.synchronize());
  Call scatter[2] = {{Collective::kReduceScatter, DType::kF32, data_, nullptr, 0, counts, 0, "x"},
                     {Collective::kReduceScatter, DType::kF32, data_, data_ + 16, 0, counts, 0, "x"}};
  for (int rank = 0; rank < 2; ++rank) communicator_->enqueue(rank, scatter[rank]);
  EXPECT_NO_THROW(mesh_.synchronize());
}

TEST(Options, ReadTheTimeOutFromTheEnvironment) {
  ::unsetenv("SHOAL_COMM_TIMEOUT");
  EXPECT_EQ(Options().timeout, std::chrono::seconds(120));
  ::setenv("SHOAL_COMM_TIMEOUT", "7", 1);
  EXPECT_EQ(Options().timeout, std::chrono::seconds(7));
  for (const char* bad : {"0", "-1", "5s", "86401"}) {
    ::setenv("SHOAL_COMM_TIMEOUT", bad, 1);
    EXPECT_THAT([] { default_timeout(); }, ThrowsMessage<InvalidArgument>(HasSubstr("SHOAL_COMM_TIMEOUT"))) << bad;
  }
  ::unsetenv("SHOAL_COMM_TIMEOUT");
}

}  // namespace
}  // namespace shoal::collectives
