// Tests of failures of the mpi communicator. In some tests, a rank is missing, the stream of a rank fails, or ranks
// queue different collectives. In other tests, a process aborts the communicator or stops sending messages. Every rank
// of every process must get the same message. If a rank is missing, the message names the missing rank, the call and
// the waiting time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>

#include "collectives/factory.h"
#include "tests/collectives/mpi/process_mesh.h"
#include "tests/support/thread_processes.h"
#include "tests/support/time_outs.h"

namespace shoal::collectives::mpi {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kCount = 100;
const std::vector<std::string> kTwoNodes{"a", "a", "b"};
const std::vector<int> kRanks{0, 1, 2, 2};

/// The objects of one process: a mesh, a communicator, and one all_reduce call per rank.
struct Side {
  Side(ProcessGroup& own_group, const Options& options)
      : group(own_group), mesh(own_group, kRanks), communicator(mesh.communicator(options)) {}

  void queue(int rank) {
    if (mesh.is_own(rank)) communicator->enqueue(rank, calls[static_cast<size_t>(rank)]);
  }
  void queue_all() {
    for (const int rank : mesh.own()) queue(rank);
  }

  ProcessGroup& group;
  ProcessMesh mesh;
  std::unique_ptr<Communicator> communicator;
  std::vector<float> data = std::vector<float>(2 * kRanks.size() * kCount, 1.0f);
  std::vector<Call> calls = [this] {
    std::vector<Call> all;
    for (size_t rank = 0; rank < kRanks.size(); ++rank) {
      float* const own = &data[2 * rank * kCount];
      all.push_back({Collective::kAllReduce, DType::kF32, own, own + kCount, kCount, {}, 0, "blk.0.ffn"});
    }
    return all;
  }();
};

void wait_for_failure(const ProcessGroup& group) {
  while (!group.has_failed()) std::this_thread::sleep_for(milliseconds(1));
}

/// Runs `function` in each process and returns the errors of all ranks. If a process ends with an exception, the
/// message of the exception is also returned.
std::vector<std::string> errors_of(const Options& options, const std::function<void(Side&)>& function,
                                   const std::vector<std::string>& hosts = kTwoNodes) {
  std::mutex mutex;
  std::vector<std::string> all;
  const auto ends = test::in_processes(hosts, [&](ProcessGroup& group) {
    Side side(group, options);
    function(side);
    const auto errors = side.mesh.errors();
    if (std::any_of(errors.begin(), errors.end(), [](const std::string& error) { return !error.empty(); })) {
      wait_for_failure(group);  // ranks of a node may fail before the process group fails
    }
    const std::lock_guard lock(mutex);
    all.insert(all.end(), errors.begin(), errors.end());
  });
  for (const test::ProcessEnd& end : ends) {
    if (end.failure != nullptr) all.push_back(end.what());
  }
  return all;
}

const Options kImpatient{.timeout = milliseconds(300)};

TEST(MpiFailure, EveryProcessNamesMissingRank) {
  for (const int late : {0, 1, 3}) {
    const auto errors = errors_of(kImpatient, [&](Side& side) {
      for (const int rank : side.mesh.own()) {
        if (rank != late) side.queue(rank);
      }
    });
    const int process = kRanks[static_cast<size_t>(late)];
    const std::string device = process == 0 ? "NULL0" : fmt::format("{}:NULL0", process);
    const std::string name =
        fmt::format("rank {} ({} on {}) of 4 did not arrive within 0.300 s", late, device, late < 2 ? "a" : "b");
    std::set<std::string> different;
    int without = 0;
    for (const std::string& error : errors) error.empty() ? ++without : (different.insert(error), 0);
    EXPECT_EQ(without, 1) << "the late rank queued nothing";
    ASSERT_EQ(different.size(), 1U) << testing::PrintToString(errors);
    EXPECT_THAT(*different.begin(),
                AllOf(HasSubstr("[all_reduce blk.0.ffn] "), HasSubstr(name), StartsWith("process ")));
  }
}

// Process 2 queues no calls, so node `b` does not answer. Node `a` waits longer than the time-out, because node `b`
// usually reports its missing ranks when the time-out expires. In this test, node `b` reports nothing, but the wait of
// node `a` must still end.
TEST(MpiFailure, ErrorNamesProcessThatDoesNotAnswer) {
  const auto errors = errors_of(kImpatient, [&](Side& side) {
    if (side.group.own() != 2) side.queue_all();
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)].empty() ? errors.back() : errors[static_cast<size_t>(rank)],
                AllOf(HasSubstr("[all_reduce blk.0.ffn]"), HasSubstr("process 2 (b) did not answer within 1.450 s")));
  }
}

TEST(MpiFailure, LateRankCausesNoErrorWithinTimeOut) {
  std::atomic<int> right{0};
  const auto errors = errors_of({.timeout = milliseconds(20000)}, [&](Side& side) {
    if (side.group.own() == 1) std::this_thread::sleep_for(milliseconds(100));
    side.queue_all();
    side.mesh.synchronize();
    for (const int rank : side.mesh.own())
      right += side.data[(2 * static_cast<size_t>(rank) + 1) * kCount] == 4.0f ? 1 : 0;
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(right, 4);
}

TEST(MpiFailure, StreamErrorReachesAllProcessesImmediately) {
  const auto start = std::chrono::steady_clock::now();
  for (const int broken : {1, 2}) {
    const auto errors = errors_of({}, [&](Side& side) {
      const auto break_stream = [](void*, const void*, bool) { fail<DeviceError>("injected fault"); };
      if (side.mesh.is_own(broken)) side.mesh.backend(broken).enqueue({break_stream, nullptr, nullptr});
      side.queue_all();
    });
    std::multiset<bool> own;
    for (const std::string& error : errors) {
      own.insert(error == "injected fault");
      if (error == "injected fault") continue;
      EXPECT_THAT(error, AllOf(HasSubstr("all_reduce blk.0.ffn"), HasSubstr(fmt::format("rank {} (", broken)),
                               HasSubstr("earlier work on this rank failed")));
    }
    EXPECT_EQ(own.count(true), 1U) << "the error of the stream takes precedence over the CommError";
    EXPECT_EQ(own.count(false), 3U);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(MpiFailure, DifferentCollectivesFailWithinAndBetweenNodes) {
  for (const int other : {1, 3}) {
    const auto errors = errors_of({}, [&](Side& side) {
      side.calls[static_cast<size_t>(other)].kind = Collective::kBroadcast;
      side.queue_all();
    });
    EXPECT_EQ(errors.size(), 4U);
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("different collectives"), HasSubstr("all_reduce f32 x 100"),
                                   HasSubstr("broadcast f32 x 100"))));
  }
  for (const std::vector<std::string>& hosts : {kTwoNodes, {"a", "b", "c"}}) {
    const auto errors = errors_of(
        {},
        [&](Side& side) {
          if (side.group.own() == 2) side.calls[2].count = side.calls[3].count = kCount - 1;
          side.queue_all();
        },
        hosts);
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("different collectives"), HasSubstr("f32 x 100"), HasSubstr("f32 x 99"))));
    EXPECT_THAT(errors, Each(errors.front()));
  }
}

TEST(MpiFailure, AbortEndsPendingAndLaterCallsInEveryProcess) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_of({}, [&](Side& side) {
    for (const int rank : side.mesh.own()) {
      if (rank != 3) side.queue(rank);
    }
    std::this_thread::sleep_for(milliseconds(50));
    if (side.group.own() == 1) side.communicator->abort("user pressed Ctrl-C");
    const auto pending = side.mesh.errors();
    for (size_t i = 0; i < pending.size(); ++i) {
      if (side.mesh.own()[i] == 3) continue;  // rank 3 has no pending call
      EXPECT_THAT(pending[i], HasSubstr("[mpi communicator] aborted: user pressed Ctrl-C"));
    }
    side.communicator->abort("a second reason");
    side.queue_all();
  });
  EXPECT_EQ(errors.size(), 4U);
  EXPECT_THAT(errors, Each("process 1 (a): [mpi communicator] aborted: user pressed Ctrl-C"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(MpiFailure, CommunicatorFailsIfItsProcessGroupFails) {
  const auto errors = errors_of({}, [&](Side& side) {
    if (side.group.own() != 2) side.queue_all();
    std::this_thread::sleep_for(milliseconds(50));
    try {
      if (side.group.own() == 2) side.group.fail("no memory left");
    } catch (const CommError&) {
      side.queue_all();
    }
  });
  EXPECT_EQ(errors.size(), 4U);
  EXPECT_THAT(errors, Each("process 2 (b): no memory left"));
}

TEST(MpiFailure, TimeOutIsReportedToTheProgram) {
  const test::TimeOuts time_outs;
  errors_of(kImpatient, [&](Side& side) { side.group.own() == 1 ? wait_for_failure(side.group) : side.queue_all(); });
  ASSERT_EQ(time_outs.messages().size(), 3U) << "each process reports one time-out, because each process must end";
  EXPECT_THAT(time_outs.messages(), Each(HasSubstr("rank 1 (1:NULL0 on a) of 4 did not arrive")));
  EXPECT_EQ(open_timeouts(), 0) << "all communicators were destroyed";
}

TEST(MpiFailure, WaitingRanksFailIfAProcessStopsSendingMessages) {
  test::ThreadHub hub({"a", "a", "b"});
  std::atomic<int> told{0}, queued{0};
  std::promise<void> all_have_ended;
  auto ended = all_have_ended.get_future().share();
  const auto ends = test::in_processes(
      hub,
      [&](ProcessGroup& group) {
        Side side(group, {});
        if (group.own() == 1) {
          // On a busy machine, an earlier cut-off makes queue_all() throw the error.
          for (int i = 0; queued < 2 && i < 30'000; ++i) std::this_thread::sleep_for(milliseconds(1));
          hub.cut_off(1);
          ended.wait_for(std::chrono::seconds(30));
          return;
        }
        side.queue_all();
        ++queued;
        for (const std::string& error : side.mesh.errors()) {
          EXPECT_THAT(error, HasSubstr("has been silent for 1.5 s"));
        }
        if (++told == 2) all_have_ended.set_value();
      },
      milliseconds(1500));
  EXPECT_EQ(told, 2);
}

TEST(MpiFailure, RefusesCallsForRemoteRanks) {
  const auto errors = errors_of({}, [&](Side& side) {
    const int other = side.group.own() == 0 ? 1 : 0;
    EXPECT_THAT([&] { side.communicator->enqueue(other, side.calls[static_cast<size_t>(other)]); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("belongs to another process")));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(MpiFactory, ConnectsRanksOfSeveralProcesses) {
  const auto errors = errors_of({}, [&](Side& side) {
    ProcessMesh mesh(side.group, kRanks, Ranks::kCpu);
    const std::vector<Device*> devices = devices_of(mesh.backends());
    const CommunicatorFactory factory = communicator_for(devices);
    const auto made = [&](const std::string& implementation) -> std::unique_ptr<Communicator> {
      const Options options{.implementation = implementation, .processes = &side.group};
      auto communicator = factory(mesh.backends(), options);
      EXPECT_EQ(communicator->describe(), factory.describe(devices, options));
      return communicator;
    };
    EXPECT_EQ(made("auto")->name(), "mpi");
    EXPECT_EQ(made("mpi")->name(), "mpi");
    const auto staged = made("staged");
    EXPECT_EQ(staged->name(), "staged");
    for (CollectiveCase& one : process_cases(mesh.size())) {
      ProcessCase test(std::move(one));
      test.queue(mesh, *staged);
      mesh.synchronize();
      ASSERT_EQ(test.wrong(mesh), "");
    }
    const auto refused = [&](const std::string& implementation, const std::string& why) {
      EXPECT_THAT([&] { factory.describe(devices, {.implementation = implementation, .processes = &side.group}); },
                  testing::ThrowsMessage<InvalidArgument>(HasSubstr(why)));
    };
    refused("host", "for devices of one process; use auto or mpi");
    refused("p2p", "for CUDA devices");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(MpiFactory, NeedsSeveralProcesses) {
  Device* const device = &Registry::instance().device("CPU0");
  const std::vector<Device*> devices(2, device);
  const CommunicatorFactory factory = communicator_for(devices);
  EXPECT_THAT([&] { factory.describe(devices, {.implementation = "mpi"}); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("this is the only process; start several processes")));
  EXPECT_THROW(make_mpi_communicator({}, {}), InvalidArgument);
}

}  // namespace
}  // namespace shoal::collectives::mpi
