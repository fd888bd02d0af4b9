// Tests of the NCCL communicator with a stand-in for NCCL (tests/cuda/nccl_standin). The tests check results, calls and
// messages. All ranks must get an error message if a call fails, if a rank is missing, or if the library is unusable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "collectives/nccl/nccl_communicator.h"
#include "tests/cuda/decoder_plan.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/nccl_standin/standin.h"
#include "tests/cuda/p2p_rig.h"
#include "tests/support/temporary.h"
#include "tests/support/time_outs.h"

namespace shoal::collectives {
namespace {

using nccl::Result;
using p2p::Case;
using std::chrono::milliseconds;
using test::CudaMesh;
using test::Environment;
using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::Eq;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Optional;
using testing::StartsWith;
using testing::ThrowsMessage;

using Strings = std::vector<std::string>;
using Errors = std::vector<std::optional<std::string>>;

constexpr milliseconds kShort{300};
/// A time-out that never expires, because every test ends earlier.
constexpr milliseconds kLong{300'000};

std::string standin(const std::string& variant = "") {
  return SHOAL_NCCL_STANDINS "libnccl-standin" + variant + ".so";
}

nccl_standin::Control& control(const std::string& variant = "") {
  return nccl_standin::control_of(standin(variant));
}

class Nccl : public testing::Test {
 protected:
  Nccl() { control().reset(); }
  ~Nccl() override {
    EXPECT_THAT(control().problems(), IsEmpty());
    EXPECT_EQ(control().live_ranks(), 0);
    shoal::cuda::emulator::clear_faults();
  }

  static void run(CudaMesh& mesh, Communicator& communicator, Case test) {
    SCOPED_TRACE(name_of(test.kind));
    test.prepare(mesh);
    std::vector<int> ranks(static_cast<size_t>(mesh.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    test.queue(communicator, ranks);
    EXPECT_THAT(mesh.errors(), Each(Eq(std::nullopt)));
    test.verify();
  }

  Environment environment_{"SHOAL_NCCL_LIBRARY", standin()};
};

/// Returns a collective with buffers. The caller chooses the ranks that queue the collective.
Case partly(const CudaMesh& mesh, Case test, const char* what = "blk.0.ffn") {
  test.what = what;
  test.prepare(mesh);
  return test;
}

/// Two ranks that have completed a collective, so neither rank waits for a connection.
struct Connected {
  Connected() {
    first.queue(*communicator, {0, 1});
    EXPECT_THAT(mesh.errors(), Each(Eq(std::nullopt)));
  }
  CudaMesh mesh{2};
  std::unique_ptr<Communicator> communicator = mesh.communicator("nccl", kLong);
  Case first = partly(mesh, all_reduce_case(2, DType::kF32, 100));
};

TEST_F(Nccl, CollectivesMakeTheExpectedNcclCalls) {
  CudaMesh mesh(3);
  const auto communicator = mesh.communicator("nccl", kLong);
  const auto calls = [&](Case test, int rank = 0) {
    control().take_calls(rank);
    run(mesh, *communicator, std::move(test));
    return control().take_calls(rank);
  };
  EXPECT_THAT(calls(all_reduce_case(3, DType::kBF16, 10)), ElementsAre("ncclAllReduce count=10 type=9"));
  EXPECT_THAT(calls(all_reduce_case(3, DType::kI32, 0)), IsEmpty());
  EXPECT_THAT(calls(broadcast_case(3, DType::kF32, 10, 2)), ElementsAre("ncclBroadcast count=10 type=7 root=2"));
  EXPECT_THAT(calls(broadcast_case(3, DType::kQ8_0, 64, 1)), ElementsAre("ncclBroadcast count=68 type=0 root=1"));
  EXPECT_THAT(calls(all_gather_case(DType::kF16, {8, 8, 8})), ElementsAre("ncclAllGather count=8 type=6"));
  EXPECT_THAT(calls(all_gather_case(DType::kF32, {8, 0, 9})),
              ElementsAre("ncclGroupStart", "ncclBroadcast count=8 type=7 root=0",
                          "ncclBroadcast count=9 type=7 root=2", "ncclGroupEnd"));
  EXPECT_THAT(calls(reduce_scatter_case(DType::kF32, {5, 5, 5})), ElementsAre("ncclReduceScatter count=5 type=7"));
  EXPECT_THAT(calls(reduce_scatter_case(DType::kF32, {5, 6, 0})),
              ElementsAre("ncclGroupStart", "ncclReduce count=5 type=7 root=0", "ncclReduce count=6 type=7 root=1",
                          "ncclGroupEnd"));
  EXPECT_THAT(calls(all_to_all_case(DType::kF32, 3, {1, 2, 3, 0, 4, 0, 7, 8, 9}), 1),
              ElementsAre("ncclGroupStart", "ncclRecv count=2 type=7 peer=0", "ncclSend count=4 type=7 peer=1",
                          "ncclRecv count=4 type=7 peer=1", "ncclRecv count=8 type=7 peer=2", "ncclGroupEnd"));
}

TEST_F(Nccl, ConnectsRanksAtFirstUse) {
  CudaMesh mesh(3);
  const auto communicator = mesh.communicator("nccl", kLong);
  EXPECT_EQ(control().count_calls("ncclGetUniqueId"), 0);
  EXPECT_EQ(control().count_calls("ncclCommInitRankConfig"), 0);
  for (int i = 0; i < 3; ++i) run(mesh, *communicator, all_reduce_case(3, DType::kF32, 10));
  EXPECT_EQ(control().count_calls("ncclGetUniqueId"), 1);
  EXPECT_EQ(control().count_calls("ncclCommInitRankConfig"), 3);

  const auto choosing = mesh.communicator("auto", kLong);
  run(mesh, *choosing, all_reduce_case(3, DType::kF32, 10));
  EXPECT_EQ(control().count_calls("ncclGetUniqueId"), 1) << "small messages use peer access";
  run(mesh, *choosing, all_reduce_case(3, DType::kF32, int64_t{cuda::kNcclFromBytes / 4}));
  EXPECT_EQ(control().count_calls("ncclGetUniqueId"), 2);
}

TEST_F(Nccl, NamesTheMissingRankOnEveryRank) {
  CudaMesh mesh(4);
  const auto communicator = mesh.communicator("nccl", kShort);
  Case all = partly(mesh, all_reduce_case(4, DType::kF32, 10), "blk.0.attn"),
       missed = partly(mesh, all_gather_case(DType::kF32, {1, 2, 3, 4})),
       later = partly(mesh, all_reduce_case(4, DType::kF32, 10), "blk.1.attn");
  all.queue(*communicator, {0, 1, 2, 3});
  missed.queue(*communicator, {0, 1, 3});
  later.queue(*communicator, {0, 1, 3});
  EXPECT_THAT(mesh.errors(),
              Each(Optional(AllOf(StartsWith("CommError: [all_gather blk.0.ffn] rank 2 (CUDA2) of 4 did not arrive"),
                                  ContainsRegex("within (0\\.[3-9]|[1-9])"), HasSubstr("SHOAL_COMM_TIMEOUT")))));
  all.verify();

  const Errors again = mesh.errors();
  EXPECT_THAT(again, Each(Optional(HasSubstr("rank 2 (CUDA2) of 4")))) << "the communicator stays failed";
}

TEST_F(Nccl, EveryRankFailsIfARankStallsOrCannotConnect) {
  for (const char* what : {"connect to the other ranks", "finish within"}) {
    CudaMesh mesh(3);
    const auto communicator = mesh.communicator("nccl", kShort);
    control().reset();
    what == std::string_view("finish within") ? control().stall(2) : control().never_connect(1);
    Case all = partly(mesh, all_reduce_case(3, DType::kF32, 10));
    all.queue(*communicator, {0, 1, 2});
    EXPECT_THAT(mesh.errors(),
                Each(Optional(AllOf(StartsWith("CommError: [all_reduce blk.0.ffn] rank "),
                                    HasSubstr("could not " + std::string(what)), HasSubstr("within 0.")))));
  }
}

TEST_F(Nccl, FailedCallReachesOtherRanksAtOnce) {
  struct Fault {
    std::string function;
    int rank;
  };
  for (const auto& [function, rank] :
       {Fault{"ncclCommInitRankConfig", 1}, Fault{"ncclCommGetAsyncError", 1}, Fault{"ncclBroadcast", 1},
        Fault{"ncclGetUniqueId", -1}, Fault{"ncclGroupStart", -1}, Fault{"ncclGroupEnd", -1}}) {
    SCOPED_TRACE(function);
    CudaMesh mesh(3);
    {
      const auto communicator = mesh.communicator("nccl", kLong);
      control().fail_call(function, rank, 1, Result::kSystemError);
      Case all = partly(mesh, all_gather_case(DType::kF32, {5, 6, 7}));
      all.queue(*communicator, {0, 1, 2});
      const Errors errors = mesh.errors();
      int own = 0;
      for (int each = 0; each < 3; ++each) {
        ASSERT_TRUE(errors[static_cast<size_t>(each)]);
        const std::string& error = *errors[static_cast<size_t>(each)];
        own += error.starts_with("DeviceError: [nccl] ");
        EXPECT_THAT(error, HasSubstr("unhandled system error"));
        if (error.starts_with("DeviceError")) continue;
        EXPECT_THAT(error, AllOf(StartsWith("CommError: [all_gather blk.0.ffn] rank "), HasSubstr("cannot take part")));
        EXPECT_THAT(error, HasSubstr(rank < 0 ? "rank " : "rank 1 (CUDA1)"));
      }
      EXPECT_EQ(own, 1) << "exactly one rank must report the cause";
    }
    // The thread of each rank must still run calls and must not have an open NCCL group.
    const auto next = mesh.communicator("nccl", kLong);
    run(mesh, *next, all_reduce_case(3, DType::kF32, 10));
    run(mesh, *next, all_gather_case(DType::kF32, {5, 6, 7}));
  }
}

TEST_F(Nccl, DestructionDoesNotReportAFailureAgain) {
  CudaMesh mesh(2);
  auto communicator = mesh.communicator("nccl", kLong);
  control().fail_call("ncclGetUniqueId", -1, 1, Result::kSystemError);
  Case all = partly(mesh, all_reduce_case(2, DType::kF32, 10));
  all.queue(*communicator, {0, 1});
  EXPECT_THAT(mesh.errors(), Each(Optional(HasSubstr("unhandled system error"))));
  std::vector<std::unique_ptr<Buffer>> written;
  for (int rank = 0; rank < 2; ++rank) {
    auto& backend = static_cast<shoal::cuda::CudaBackend&>(mesh.backend(rank));
    written.push_back(backend.device().buffer_type().allocate(size_t{64} << 20));
    const auto write = [](void* object, const void*, const shoal::cuda::LaunchContext& context, bool) {
      for (int i = 0; i < 4; ++i) cudaMemsetAsync(object, i, size_t{64} << 20, context.stream);
    };
    backend.push_launch({write, written.back()->base(), nullptr});
  }
  communicator.reset();
  EXPECT_THAT(mesh.errors(), Each(Eq(std::nullopt)));
}

TEST_F(Nccl, FailureOfEarlierWorkReachesOtherRanksAtOnce) {
  CudaMesh mesh(3);
  const auto communicator = mesh.communicator("nccl", kLong);
  Case first = partly(mesh, all_reduce_case(3, DType::kF32, 10)),
       lost = partly(mesh, all_reduce_case(3, DType::kF32, 10)),
       pending = partly(mesh, all_reduce_case(3, DType::kF32, 10), "blk.1.ffn");
  first.queue(*communicator, {0, 1, 2});
  EXPECT_THAT(mesh.errors(), Each(Eq(std::nullopt)));

  const p2p::DeviceBytes memory(1, 16);
  const std::vector<std::byte> bytes(16);
  // Before the failure, ranks 0 and 1 queue a collective that rank 2 does not queue.
  pending.queue(*communicator, {0, 1});
  mesh.backend(1).write_bytes_async(memory.data(), bytes.data(),
                                    (shoal::cuda::emulator::fail_call("cudaMemcpyAsync", 1, cudaErrorUnknown), 16));
  lost.queue(*communicator, {0, 1, 2});
  const Errors errors = mesh.errors();
  EXPECT_THAT(errors[1], Optional(StartsWith("DeviceError: [CUDA1] cannot copy bytes")));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(errors[rank], Optional(StartsWith("CommError: [all_reduce blk.0.ffn] rank 1 (CUDA1) cannot take part: "
                                                  "earlier work on this rank failed")));
  }
}

// The launcher polls an unfinished stream. Each poll makes cudaErrorNotReady the last CUDA error.
TEST_F(Nccl, LaunchesLaterWorkWhileACollectiveIsUnfinished) {
  Connected ranks;
  auto& [mesh, communicator, first] = ranks;
  test::Loaded loaded("input %x f32 [8]\n%y = add(%x, %x)\noutput %y\n", *mesh.devices()[0]);
  const auto plan = mesh.backend(0).create_plan(loaded.graph);
  loaded.fill_inputs();
  for (int i = 0; i < 3; ++i) {
    first.queue(*communicator, {0});
    Strings calls;
    while (std::count(calls.begin(), calls.end(), "cudaStreamQuery") == 0) {
      shoal::cuda::emulator::record_calls();
      std::this_thread::sleep_for(milliseconds(1));
      calls = shoal::cuda::emulator::take_calls();
    }
    mesh.backend(0).compute_async(*plan);
    first.queue(*communicator, {1});
    ASSERT_THAT(mesh.errors(), Each(Eq(std::nullopt)));
  }
  first.verify();
}

TEST_F(Nccl, AWaitForAnEventTimesOut) {
  const test::TimeOuts time_outs;
  CudaMesh mesh(2);
  auto communicator = mesh.communicator("nccl", kShort);
  Case first = partly(mesh, all_reduce_case(2, DType::kF32, 10)),
       missed = partly(mesh, all_reduce_case(2, DType::kF32, 10));
  first.queue(*communicator, {0, 1});
  missed.queue(*communicator, {0});
  const auto event = mesh.backend(0).device().new_event();
  event->record(mesh.backend(0));
  event->synchronize();
  const auto named = HasSubstr("rank 1 (CUDA1) of 2 did not arrive");
  EXPECT_THAT(mesh.errors(), Each(Optional(named)));
  EXPECT_THAT(time_outs.messages(), ElementsAre(named));
  communicator.reset();
  EXPECT_EQ(open_timeouts(), 0) << "no time-out may remain open";
}

TEST_F(Nccl, AbortOrAsynchronousErrorEndsTheWait) {
  for (const bool aborts : {true, false}) {
    Connected ranks;
    ranks.first.queue(*ranks.communicator, {0});
    aborts ? ranks.communicator->abort("user pressed Ctrl-C") : control().set_async_error(0, Result::kRemoteError);
    EXPECT_THAT(ranks.mesh.errors(),
                Each(Optional(ContainsRegex(aborts ? "^CommError: .nccl communicator. aborted: user pressed Ctrl-C"
                                                   : "^CommError: .all_reduce blk.0.ffn. rank 0 .CUDA0. cannot .*: "
                                                     "remote process exited"))));
  }
}

TEST_F(Nccl, NamesUnusableLibrariesAndUsesOtherCommunicators) {
  struct Library {
    std::string file, message;
  };
  const test::TemporaryFolder folder;
  const std::string pipe = folder.path() / "libnccl.so";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<Library> libraries = {{pipe, "is a pipe, not a library"},
                                          {"/nowhere/libnccl.so", "cannot load /nowhere/libnccl.so"},
                                          {standin("-old"), "is version 2.17.2; install 2.18.0 or later"},
                                          {standin("-incomplete"), "has no function ncclReduceScatter"}};
  for (const Library& library : libraries) {
    SCOPED_TRACE(library.file);
    environment_.set("SHOAL_NCCL_LIBRARY", library.file);
    CudaMesh mesh(2);
    EXPECT_THAT([&] { mesh.communicator("nccl"); },
                ThrowsMessage<DeviceError>(AllOf(StartsWith("[nccl] "), HasSubstr(library.message))));
    const auto communicator = mesh.communicator("auto", kLong);
    run(mesh, *communicator, all_reduce_case(2, DType::kF32, 10));
    run(mesh, *communicator, all_reduce_case(2, DType::kF32, int64_t{cuda::kNcclFromBytes / 4}));
    EXPECT_TRUE(communicator->can_be_recorded()) << "the communicator uses peer access";
    const auto staged = mesh.communicator("staged", kLong);
    run(mesh, *staged, all_reduce_case(2, DType::kF32, 10));
  }
  EXPECT_EQ(control().count_calls("ncclCommInitRankConfig"), 0);
}

TEST_F(Nccl, RefusesRanksThatShareAGpu) {
  CudaMesh mesh(1, 2);
  EXPECT_THAT([&] { mesh.communicator("nccl"); },
              ThrowsMessage<DeviceError>(HasSubstr("several ranks share a GPU; use auto, p2p or staged")));
}

/// A decoder that runs on two of three GPUs with NCCL. The third GPU computes the expected result.
class NcclPlan : public Nccl {
 protected:
  /// Runs the plan and returns the number of collectives that rank 0 queued.
  size_t run_plan() {
    control().take_calls(0);
    decoder_.run();
    return control().take_calls(0).size();
  }

  CudaMesh mesh_{3};
  test::DecoderPlan decoder_{mesh_, "nccl"};
};

TEST_F(NcclPlan, IsRecordedAndReplayed) {
  const size_t collectives = run_plan();
  EXPECT_GE(collectives, 2u);
  EXPECT_EQ(run_plan(), collectives) << "recorded";
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run_plan(), 0u) << "replayed";
}

TEST_F(NcclPlan, ReconnectsAfterAFailedReplay) {
  for (int i = 0; i < 3; ++i) run_plan();
  control().stall(1);
  control().set_async_error(1, Result::kUnhandledCudaError);
  decoder_.loaded->fill_inputs();
  decoder_.backend->compute_async(*decoder_.plan);
  EXPECT_THAT([&] { decoder_.backend->synchronize(); },
              ThrowsMessage<CommError>(HasSubstr("rank 1 (CUDA1) cannot finish")));
  EXPECT_EQ(control().live_ranks(), 0) << "the old ranks must be destroyed";
  control().reset();
  EXPECT_GE(run_plan(), 2u) << "reconnects";
  EXPECT_GE(run_plan(), 2u) << "records again";
  EXPECT_EQ(run_plan(), 0u);
  EXPECT_EQ(control().count_calls("ncclCommInitRankConfig"), 2);
}

}  // namespace
}  // namespace shoal::collectives
