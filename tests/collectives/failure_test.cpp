// In some tests, a rank stalls, queues no call or queues a different collective. In other tests, the stream of a rank
// fails, or a thread aborts the communicator. After such a failure, every rank must get a CommError within the
// time-out. If a rank is missing, the error names the missing rank, the call and the waiting time. All later calls of
// the communicator fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "tests/collectives/mesh.h"
#include "tests/support/faulty_communicator.h"

namespace shoal::collectives {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::Eq;
using testing::HasSubstr;
using testing::Optional;

const Options kImpatient{.timeout = milliseconds(100), .spin = std::chrono::microseconds(50)};
constexpr int64_t kCount = 100;

class Failure : public testing::Test {
 protected:
  /// Queues an all_reduce on each of the given ranks.
  void all_reduce(Communicator& communicator, const std::vector<int>& ranks) {
    for (int rank : ranks) communicator.enqueue(rank, call_);
  }
  std::vector<std::optional<std::string>> all_reduce_all(Communicator& communicator) {
    for (int rank = 0; rank < communicator.size(); ++rank) {
      calls_[rank].in = calls_[rank].out = &data_[rank * kCount];
      communicator.enqueue(rank, calls_[rank]);
    }
    return mesh_.errors();
  }

  Mesh mesh_{4};
  std::vector<float> data_ = std::vector<float>(4 * kCount, 1.0f);
  std::vector<float> unused_ = std::vector<float>(kCount);
  const Call call_{Collective::kAllReduce, DType::kF32, unused_.data(), unused_.data(), kCount, {}, 0, "blk.0.ffn"};
  std::vector<Call> calls_ = std::vector<Call>(4, call_);
};

TEST_F(Failure, EveryRankNamesStalledRankAndRankZeroDoesNotWait) {
  FaultyCommunicator communicator(mesh_.communicator(kImpatient), mesh_.backends(),
                                  {Fault::kStall, 2, 1, milliseconds(600)});
  EXPECT_THAT(all_reduce_all(communicator), Each(Eq(std::nullopt)));
  const auto start = std::chrono::steady_clock::now();
  for (int rank = 0; rank < 4; ++rank) communicator.enqueue(rank, calls_[rank]);
  EXPECT_THROW(mesh_.backend(0).synchronize(), CommError);
  const auto waited = std::chrono::steady_clock::now() - start;
  EXPECT_GE(waited, milliseconds(100));
  EXPECT_LT(waited, milliseconds(600)) << "rank 0 waited until the stalled rank arrived";
  auto errors = mesh_.errors();  // synchronize() has already thrown the error of rank 0
  errors.erase(errors.begin());
  EXPECT_THAT(errors, Each(Optional(AllOf(HasSubstr("all_reduce blk.0.ffn"), HasSubstr("rank 2 of 4"),
                                          HasSubstr("did not arrive within 0.1")))));
}

TEST_F(Failure, LateRankCausesNoErrorWithinTimeOut) {
  FaultyCommunicator communicator(mesh_.communicator({.timeout = milliseconds(20000)}), mesh_.backends(),
                                  {Fault::kStall, 1, 0, milliseconds(50)});
  EXPECT_THAT(all_reduce_all(communicator), Each(Eq(std::nullopt)));
  EXPECT_THAT(data_, Each(4.0f));
}

TEST_F(Failure, ErrorNamesAllMissingRanks) {
  const auto communicator = mesh_.communicator(kImpatient);
  all_reduce(*communicator, {0, 2});
  const auto errors = mesh_.errors();
  EXPECT_THAT(errors[0], Optional(HasSubstr("rank 1, 3 of 4")));
  EXPECT_EQ(errors[0], errors[2]);
  EXPECT_EQ(errors[1], std::nullopt);
}

TEST_F(Failure, FailedCommunicatorRepeatsFirstError) {
  const auto communicator = mesh_.communicator(kImpatient);
  all_reduce(*communicator, {0});
  const auto first = mesh_.errors()[0];
  ASSERT_THAT(first, Optional(HasSubstr("rank 1, 2, 3 of 4")));
  communicator->abort("a second reason");
  EXPECT_THAT(all_reduce_all(*communicator), Each(Eq(first)));
  const auto fresh = mesh_.communicator(kImpatient);
  EXPECT_THAT(all_reduce_all(*fresh), Each(Eq(std::nullopt)));
}

TEST_F(Failure, AbortEndsPendingAndLaterCallsImmediately) {
  const auto communicator = mesh_.communicator();  // uses the default time-out
  const auto start = std::chrono::steady_clock::now();
  all_reduce(*communicator, {0, 1, 3});
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    communicator->abort("user pressed Ctrl-C");
  });
  auto errors = mesh_.errors();
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  errors.erase(errors.begin() + 2);
  EXPECT_THAT(errors, Each(Optional(HasSubstr("aborted: user pressed Ctrl-C"))));
  EXPECT_THAT(all_reduce_all(*communicator), Each(Optional(HasSubstr("aborted: user pressed Ctrl-C"))));
}

TEST_F(Failure, StreamErrorReachesAllRanksImmediately) {
  const auto start = std::chrono::steady_clock::now();
  FaultyCommunicator communicator(mesh_.communicator(), mesh_.backends(), {Fault::kFail, 1, 0});
  const auto errors = all_reduce_all(communicator);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_THAT(errors[1], Optional(HasSubstr("injected fault")))
      << "the error of the stream takes precedence over the CommError";
  for (int rank : {0, 2, 3}) {
    EXPECT_THAT(errors[rank], Optional(AllOf(HasSubstr("all_reduce blk.0.ffn"), HasSubstr("rank 1 (T1)"),
                                             HasSubstr("earlier work on this rank failed"))));
  }
}

TEST_F(Failure, RanksWithDifferentCollectivesFail) {
  const auto communicator = mesh_.communicator();
  calls_[3].kind = Collective::kBroadcast;
  EXPECT_THAT(all_reduce_all(*communicator),
              Each(Optional(AllOf(HasSubstr("different collectives"), HasSubstr("rank 0 queued all_reduce f32 x 100"),
                                  HasSubstr("rank 3 queued broadcast f32 x 100")))));
}

TEST_F(Failure, RanksWithDifferentCountsFail) {
  const auto communicator = mesh_.communicator();
  const std::vector<int64_t> counts[2] = {{1, 2, 3, 4}, {1, 2, 4, 3}};
  for (int rank = 0; rank < 4; ++rank) {
    calls_[rank] = {Collective::kAllGather, DType::kF32, data_.data(), unused_.data(), 0, counts[rank == 2], 0, "x"};
  }
  std::vector<float> out(4 * 10);
  for (int rank = 0; rank < 4; ++rank) {
    calls_[rank].out = &out[rank * 10];
    communicator->enqueue(rank, calls_[rank]);
  }
  EXPECT_THAT(mesh_.errors(), Each(Optional(AllOf(HasSubstr("different collectives"), HasSubstr("rank 2")))));
}

/// Tests failures of calls that the staged communicator divides into pieces.
class PiecesFailure : public testing::Test {
 protected:
  static constexpr int64_t kPart = int64_t{1} << 20;
  /// Runs an all_gather in which each rank passes its own counts.
  std::vector<std::optional<std::string>> all_gather(const std::vector<std::vector<int64_t>>& counts,
                                                     const Options& options = {}) {
    const auto communicator = mesh_.communicator(options);
    calls_.clear();
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      float* const out = &data_[rank * 5 * kPart];
      calls_.push_back({Collective::kAllGather, DType::kF32, out + 4 * kPart, out, 0, counts[rank], 0, "logits"});
    }
    for (size_t rank = 0; rank < counts.size(); ++rank) communicator->enqueue(static_cast<int>(rank), calls_[rank]);
    return mesh_.errors();
  }

  Mesh mesh_{2, Streams::kCpuStaged};
  std::vector<float> data_ = std::vector<float>(10 * kPart);
  std::vector<Call> calls_;
};

TEST_F(PiecesFailure, ErrorNamesMissingRankAndWholeCall) {
  EXPECT_THAT(all_gather({{kPart, kPart}}, kImpatient)[0],
              Optional(AllOf(HasSubstr("[all_gather logits] rank 1 of 2"), HasSubstr("did not arrive within 0.1"))));
}

// The first piece has the same size on both ranks, but the call of one rank has more pieces than the call of the other
// rank.
TEST_F(PiecesFailure, RanksWithDifferentCountsFail) {
  for (const std::vector<int64_t>& other :
       {std::vector{kPart, kPart / 2}, {kPart / 2, kPart}, {kPart + 1, kPart - 1}}) {
    EXPECT_THAT(all_gather({{kPart, kPart}, other}),
                Each(Optional(AllOf(HasSubstr("[all_gather logits]"), HasSubstr("different collectives")))));
  }
}

// Each rank's call has one piece. The counts of the two calls differ but have the same sum.
TEST_F(PiecesFailure, MessageDistinguishesDifferentCountsWithEqualSum) {
  for (const std::optional<std::string>& error : all_gather({{10, 20}, {20, 10}})) {
    ASSERT_TRUE(error);
    constexpr std::string_view kDigest = "digest of counts ";
    const size_t first = error->find(kDigest), second = error->find(kDigest, first + 1), length = kDigest.size() + 4;
    ASSERT_NE(second, std::string::npos) << *error;
    EXPECT_NE(error->substr(first, length), error->substr(second, length)) << *error;
  }
}

// Rank 0 queues one call of two pieces. Rank 1 queues two calls, each as long as one of these pieces. The calls must
// fail before any data are moved.
TEST_F(PiecesFailure, WholeCallDoesNotMatchPieceOfLongerCall) {
  for (const Collective kind : {Collective::kAllReduce, Collective::kBroadcast}) {
    const auto communicator = mesh_.communicator();
    std::fill(data_.begin(), data_.end(), 1.0f);
    calls_.assign(3, {kind, DType::kF32, data_.data(), &data_[kPart], kPart / 2, {}, 0, "sum"});
    for (int part : {1, 2}) {
      calls_[part].count = kPart / 4;
      calls_[part].out = &data_[(part + 1) * kPart];
    }
    communicator->enqueue(0, calls_[0]);
    communicator->enqueue(1, calls_[1]);
    communicator->enqueue(1, calls_[2]);
    EXPECT_THAT(mesh_.errors(), Each(Optional(AllOf(HasSubstr("sum]"), HasSubstr("different collectives")))));
    EXPECT_TRUE(std::all_of(data_.begin(), data_.end(), [](float value) { return value == 1.0f; }));
  }
}

TEST_F(Failure, CorruptedResultOfOneRankChangesNoOtherRank) {
  FaultyCommunicator communicator(mesh_.communicator(), mesh_.backends(), {Fault::kCorrupt, 3, 0});
  EXPECT_THAT(all_reduce_all(communicator), Each(Eq(std::nullopt)));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(data_[rank * kCount] == 4.0f, rank != 3);
  EXPECT_EQ(communicator.calls(3), 1);
  EXPECT_EQ(communicator.calls(3, Collective::kAllReduce), 1);
  EXPECT_EQ(communicator.calls(3, Collective::kBroadcast), 0);
}

/// A backend that cannot run host functions.
class DeafBackend final : public ThreadBackend {
 public:
  DeafBackend() : ThreadBackend("deaf") {}
  bool enqueue(const HostTask&) override { return false; }
};

TEST(MakeHostCommunicator, RefusesUnsuitableBackends) {
  ThreadBackend good("good");
  DeafBackend deaf;
  EXPECT_THROW(make_host_communicator({}), InvalidArgument);
  EXPECT_THROW(make_host_communicator(std::vector<Backend*>{&good, &good}), InvalidArgument);
  EXPECT_THROW(make_host_communicator(std::vector<Backend*>{&good, nullptr}), InvalidArgument);
  EXPECT_THAT(
      [&] {
        make_host_communicator(std::vector<Backend*>{&good, &deaf});
      },
      testing::ThrowsMessage<InvalidArgument>(HasSubstr("deaf cannot run host functions")));
}

}  // namespace
}  // namespace shoal::collectives
