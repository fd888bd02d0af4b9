// Tests of the NCCL communicator in several processes on several hosts. Threads act as the processes of a group;
// programs/cuda_ranks.cpp tests real processes. The tests check which communicator is chosen. They also check that all
// processes get the same message after a failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "collectives/cuda/cuda_communicator.h"
#include "devices/cuda/cuda_family.h"
#include "tests/cuda/nccl_standin/standin.h"
#include "tests/cuda/process_mesh.h"
#include "tests/support/environment.h"
#include "tests/support/thread_processes.h"

namespace shoal::collectives {
namespace {

using std::chrono::milliseconds;
using test::CudaProcessCase;
using test::CudaProcessMesh;
using test::Environment;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::ThrowsMessage;

using Strings = std::vector<std::string>;
constexpr milliseconds kShort{300};
constexpr auto kSystemError = nccl::Result::kSystemError;

nccl_standin::Control& control() {
  return nccl_standin::control_of(SHOAL_NCCL_STANDINS "libnccl-standin.so");
}

class NcclProcesses : public testing::Test {
 protected:
  NcclProcesses() { control().reset(); }
  ~NcclProcesses() override {
    EXPECT_THAT(control().problems(), IsEmpty());
    EXPECT_EQ(control().live_ranks(), 0);
  }

  /// Runs `work` in one process per host. `process_of` contains the process of each rank. By default each process has
  /// one rank.
  void in_processes(const Strings& hosts, const std::function<void(ProcessGroup&, CudaProcessMesh&)>& work,
                    std::vector<int> process_of = {}) {
    for (size_t process = process_of.size(); process < hosts.size(); ++process) {
      process_of.push_back(static_cast<int>(process));
    }
    const auto ends = test::in_processes(hosts, [&](ProcessGroup& group) {
      CudaProcessMesh mesh(group, process_of, family_.devices());
      work(group, mesh);
    });
    for (const test::ProcessEnd& end : ends) EXPECT_EQ(end.what(), "");
  }
  /// Runs one collective. Then calls `fails`, which causes a failure. Returns the message of the failure, which must be
  /// equal in all processes.
  std::string heard_everywhere(const Strings& hosts, milliseconds timeout,
                               const std::function<void(CudaProcessMesh&, Communicator&, CudaProcessCase&)>& fails) {
    std::mutex mutex;
    std::set<std::string> heard;
    in_processes(hosts, [&](ProcessGroup& group, CudaProcessMesh& mesh) {
      const auto communicator = cuda::make_cuda_communicator(mesh.backends(), mesh.options("nccl", timeout));
      const auto ranks = mesh.size();
      CudaProcessCase first(mesh, all_reduce_case(ranks, DType::kF32, 10), "first"),
          second(mesh, all_reduce_case(ranks, DType::kF32, 10), "second");
      first.queue(*communicator);
      mesh.synchronize();
      EXPECT_EQ(first.wrong(), "");
      group.gather("", "first call");  // the first call must have ended in all processes
      fails(mesh, *communicator, second);
      mesh.errors();
      for (int i = 0; i < 30'000 && !group.has_failed(); ++i) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_TRUE(group.has_failed());
      try {
        group.throw_if_failed();
      } catch (const CommError& error) {
        const std::lock_guard lock(mutex);
        heard.insert(error.what());
      }
      // Later calls must fail with the same message.
      second.queue(*communicator);
      for (const std::string& message : mesh.errors()) {
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(heard.contains(message) || message.find("on purpose") != std::string::npos) << message;
      }
    });
    EXPECT_EQ(heard.size(), 1u) << testing::PrintToString(heard);
    return heard.empty() ? "" : *heard.begin();
  }

  Environment environment_{{"SHOAL_NCCL_LIBRARY", SHOAL_NCCL_STANDINS "libnccl-standin.so"},
                           {"SHOAL_EMULATED_GPUS", "4"},
                           {"SHOAL_CUDA_DEVICES_PER_GPU", "1"}};
  shoal::cuda::CudaFamily family_;
};

TEST_F(NcclProcesses, RefusesRanksOfOtherProcesses) {
  in_processes({"a", "b"}, [&](ProcessGroup& group, CudaProcessMesh& mesh) {
    const auto communicator = cuda::make_cuda_communicator(mesh.backends(), mesh.options("nccl"));
    float value = 0;
    const Call call{.in = &value, .out = &value, .count = 1, .what = "x"};
    EXPECT_THAT([&] { communicator->enqueue(1 - group.own(), call); },
                ThrowsMessage<InvalidArgument>(HasSubstr("belongs to another process")));
  });
}

TEST_F(NcclProcesses, ErrorNamesRankThatIsProbablyMissing) {
  const auto heard = [&](const Strings& hosts) {
    return heard_everywhere(hosts, kShort, [](auto& mesh, auto& nccl, auto& second) {
      if (mesh.own()[0] != 2) second.queue(nccl);
    });
  };
  EXPECT_THAT(heard({"a", "b", "b"}),
              AllOf(StartsWith("process 1 (b): [all_reduce second] rank 2 (2:CUDA2 on b) of 3 did not arrive"),
                    HasSubstr("SHOAL_COMM_TIMEOUT")));
  EXPECT_THAT(heard({"a", "a", "b"}), AllOf(StartsWith("process "), HasSubstr(" (a): [all_reduce second] rank "),
                                            HasSubstr("because another rank, such as rank 2 (2:CUDA2 on b), is late"),
                                            HasSubstr("SHOAL_COMM_TIMEOUT")));
}

TEST_F(NcclProcesses, NamesTheRankOfTheFailedStream) {
  const std::string heard =
      heard_everywhere({"a", "b"}, std::chrono::minutes(5), [](auto& mesh, auto& nccl, auto& second) {
        const auto fail = [](void*, const void*, bool) { throw DeviceError("on purpose"); };
        if (mesh.own()[0] == 1) mesh.backend(1).enqueue({fail, nullptr, nullptr});
        second.queue(nccl);
      });
  EXPECT_THAT(heard, StartsWith("process 1 (b): [all_reduce second] rank 1 (1:CUDA1 on b) cannot take part"));
}

TEST_F(NcclProcesses, ReportsAsynchronousNcclErrorsOnce) {
  const std::string heard =
      heard_everywhere({"a", "b"}, std::chrono::minutes(5), [](auto& mesh, auto& nccl, auto& second) {
        if (mesh.own()[0] == 1) control().set_async_error(1, kSystemError);
        second.queue(nccl);
      });
  EXPECT_THAT(heard, AllOf(StartsWith("process 1 (b): [all_reduce second] rank 1 (1:CUDA1 on b) cannot "),
                           HasSubstr("unhandled system error")));
}

TEST_F(NcclProcesses, AbortReachesAllProcesses) {
  const std::string heard = heard_everywhere(
      {"a", "b"}, std::chrono::minutes(5),
      [](auto& mesh, auto& nccl, auto& second) { mesh.own()[0] == 1 ? nccl.abort("enough") : second.queue(nccl); });
  EXPECT_EQ(heard, "process 1 (b): [nccl communicator] aborted: enough");
}

TEST_F(NcclProcesses, FallsBackToStagedWithoutNccl) {
  environment_.set("SHOAL_NCCL_LIBRARY", "none");
  in_processes({"a", "b"}, [&](ProcessGroup&, CudaProcessMesh& mesh) {
    EXPECT_THAT([&] { cuda::make_cuda_communicator(mesh.backends(), mesh.options("nccl")); },
                ThrowsMessage<DeviceError>(StartsWith("process 0 (a): [nccl] cannot load none")));
    const auto communicator = cuda::make_cuda_communicator(mesh.backends(), mesh.options("auto"));
    EXPECT_THAT(communicator->remark(), StartsWith("process 0 (a): [nccl] cannot load none"));
    EXPECT_FALSE(communicator->can_be_recorded());
    EXPECT_EQ(communicator->describe(), cuda::describe_cuda_communicator(mesh.devices(), mesh.options("auto")));
    EXPECT_GT(communicator->buffer_bytes(0), 0u);
  });
}

TEST_F(NcclProcesses, AllProcessesReportFailedIdCreation) {
  control().fail_call("ncclGetUniqueId", -1, 1, kSystemError);
  in_processes({"a", "b"}, [&](ProcessGroup&, CudaProcessMesh& mesh) {
    EXPECT_THAT([&] { cuda::make_cuda_communicator(mesh.backends(), mesh.options("nccl")); },
                ThrowsMessage<DeviceError>("[nccl] process 0 (a) cannot create an NCCL id for the ranks: unhandled "
                                           "system error"));
  });
}

TEST_F(NcclProcesses, RefusesRanksThatShareAGpu) {
  const auto make_on_first_gpus = [&](const Strings& hosts, const std::function<void(Communicator*)>& check) {
    in_processes(hosts, [&](ProcessGroup& group, CudaProcessMesh&) {
      const std::vector<Device*> twice(2, family_.devices()[0]);
      CudaProcessMesh mesh(group, {0, 1}, twice);
      if (check) {
        check(cuda::make_cuda_communicator(mesh.backends(), mesh.options("nccl")).get());
        return;
      }
      EXPECT_THAT([&] { cuda::make_cuda_communicator(mesh.backends(), mesh.options("nccl")); },
                  ThrowsMessage<DeviceError>(StartsWith(
                      "[nccl] rank 0 (CUDA0 on a) and rank 1 (1:CUDA0 on a) share a GPU; use --comm staged")));
    });
  };
  make_on_first_gpus({"a", "a"}, {});
  make_on_first_gpus({"a", "b"}, [](Communicator* made) { EXPECT_EQ(made->name(), "nccl"); });
}

TEST_F(NcclProcesses, RefusesP2pAndMpi) {
  in_processes({"a", "b"}, [&](ProcessGroup&, CudaProcessMesh& mesh) {
    for (const auto& [name, why] : {std::pair("p2p", "needs all ranks in one process"), std::pair("mpi", "use auto")}) {
      EXPECT_THAT([&] { cuda::make_cuda_communicator(mesh.backends(), mesh.options(name)); },
                  ThrowsMessage<InvalidArgument>(HasSubstr(why)));
      EXPECT_THAT([&] { cuda::describe_cuda_communicator(mesh.devices(), mesh.options(name)); },
                  ThrowsMessage<InvalidArgument>(HasSubstr(why)));
    }
  });
}

}  // namespace
}  // namespace shoal::collectives
