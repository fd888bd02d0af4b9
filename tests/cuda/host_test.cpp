// Tests of the host code of CUDA devices on emulated GPUs. The tests cover the runtime calls of plans and recordings,
// failures of these calls, and the GPUs that the family reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <thread>

#include "base/error.h"
#include "devices/cuda/cuda_api.h"
#include "devices/cuda/peer_access.h"
#include "devices/functions.h"
#include "graph/ops/ops.h"
#include "tests/cuda/decoder_plan.h"
#include "tests/cuda/emulator/emulator.h"

namespace shoal::cuda {
namespace {

using emulator::fail_call;
using test::Calls;
using test::CudaMesh;
using test::DecoderPlan;
using test::Environment;
using test::Loaded;
using testing::AllOf;
using testing::Each;
using testing::Eq;
using testing::HasSubstr;
using testing::Optional;
using testing::StartsWith;
using testing::ThrowsMessage;

constexpr const char* kText = R"(
input %x f32 [8]
weight %w f32 [8]
%a = add(%x, %w)
%b = mul(%a, %x)
%y = sub(%b, %w)
output %y
)";
constexpr size_t kKernels = 3;

class Host : public testing::Test {
 protected:
  ~Host() override { emulator::clear_faults(); }

  Calls run(Loaded& on, GraphPlan& plan) {
    on.fill_inputs();
    return Calls(backend_, [&] { backend_.compute_async(plan); });
  }
  static void expect_right(const Loaded& on) { expect_right(on.graph, *on.weights.tensors()[0]); }
  static void expect_right(const Graph& graph, const Tensor& weight) {
    const auto x = test::read_floats(*graph.find("x")), w = test::read_floats(weight);
    const auto y = test::read_floats(*graph.find("y"));
    for (size_t i = 0; i < y.size(); ++i) EXPECT_FLOAT_EQ(y[i], (x[i] + w[i]) * x[i] - w[i]) << i;
  }
  void expect_error(const std::string& text) {
    EXPECT_THAT([&] { backend_.synchronize(); }, ThrowsMessage<DeviceError>(HasSubstr(text)));
  }

  CudaMesh mesh_{1};
  Device& device_ = *mesh_.devices()[0];
  Backend& backend_ = mesh_.backend(0);
  Loaded loaded_{kText, device_};
  std::unique_ptr<GraphPlan> plan_ = backend_.create_plan(loaded_.graph);
};

TEST_F(Host, LaterRunsOnlyLaunchTheCapturedGraph) {
  const Calls first = run(loaded_, *plan_);
  EXPECT_EQ(first["cudaLaunchKernel"], kKernels);
  EXPECT_EQ(first["cudaStreamBeginCapture"] + first["cudaGraphLaunch"], 0u);
  expect_right(loaded_);
  loaded_.seed = 2;
  const Calls second = run(loaded_, *plan_);
  EXPECT_EQ(second["cudaStreamBeginCapture"], 1u);
  EXPECT_EQ(second["cudaGraphInstantiate"], 1u);
  EXPECT_EQ(second["cudaGraphLaunch"], 1u);
  expect_right(loaded_);
  for (uint64_t seed = 3; seed < 6; ++seed) {
    loaded_.seed = seed;
    const Calls later = run(loaded_, *plan_);
    EXPECT_EQ(later["cudaGraphLaunch"], 1u);
    EXPECT_EQ(later["cudaLaunchKernel"] + later["cudaStreamBeginCapture"] + later["cudaGraphInstantiate"], 0u);
    EXPECT_EQ(later["cudaMallocAsync"] + later["cudaMalloc"], 0u);
    expect_right(loaded_);
  }
}

TEST_F(Host, GraphsCanBeTurnedOff) {
  const Environment off("SHOAL_CUDA_OFF", "graphs");
  const CudaMesh without(1), with(1, 1, "graphs=1");
  EXPECT_TRUE(static_cast<CudaBackend&>(with.backend(0)).uses_graphs());
  Backend& backend = without.backend(0);
  Loaded one(kText, *without.devices()[0]);
  const auto plan = backend.create_plan(one.graph);
  for (int i = 0; i < 4; ++i) {
    one.fill_inputs();
    const Calls calls(backend, [&] { backend.compute_async(*plan); });
    EXPECT_EQ(calls["cudaLaunchKernel"], kKernels);
    EXPECT_EQ(calls["cudaStreamBeginCapture"] + calls["cudaGraphLaunch"], 0u);
    expect_right(one);
  }
  EXPECT_FALSE(backend.start_recording());
}

TEST_F(Host, MovedPlanUpdatesItsGraphOnlyIfAddressesChange) {
  for (int i = 0; i < 3; ++i) run(loaded_, *plan_);
  Tensor* const w = loaded_.weights.tensors()[0];
  std::list<Graph> graphs;
  const auto run_moved = [&] {
    Graph& other = graphs.emplace_back("other");
    Tensor* const x = other.input("x", DType::kF32, {8, 1, 1, 1});
    other.output(sub(other, mul(other, add(other, x, w), x), w, "y"));
    EXPECT_TRUE(backend_.update_plan(*plan_, other));
    loaded_.fill(*x);
    const Calls calls(backend_, [&] { backend_.compute_async(*plan_); });
    expect_right(other, *w);
    EXPECT_EQ(calls["cudaGraphLaunch"], 1u);
    EXPECT_EQ(calls["cudaLaunchKernel"] > 0, calls["cudaGraphExecUpdate"] > 0) << "a capture must update the graph";
    EXPECT_EQ(calls["cudaGraphInstantiate"], 0u);
    EXPECT_EQ(calls["cudaGraphUpload"], calls["cudaGraphExecUpdate"]);
    return calls["cudaGraphExecUpdate"];
  };
  EXPECT_EQ(run_moved(), 0u);
  const auto before = std::move(loaded_.memory);
  w->buffer = nullptr, w->data = nullptr;
  loaded_.memory = allocate_tensors(loaded_.weights.tensors(), device_.buffer_type(), Usage::kWeights);
  loaded_.seed = 2;
  loaded_.fill(*w);
  EXPECT_EQ(run_moved(), 1u) << "the weight has moved";
  EXPECT_EQ(run_moved(), 0u);
  plan_.reset();
}

/// The problem that a device reports if it cannot create a CUDA graph.
std::string no_graph(cudaError_t why) {
  return "CUDA0 launches kernels one by one (slower), because CUDA cannot create a graph (" +
         std::string(cudaGetErrorString(why)) + ")";
}

TEST_F(Host, LaunchesKernelsOneByOneIfCaptureFails) {
  for (const auto& [call, error] : {std::pair{"cudaStreamBeginCapture", cudaErrorUnknown},
                                    {"cudaGraphInstantiate", cudaErrorInvalidValue},
                                    {"cudaLaunchKernel", cudaErrorInvalidConfiguration}}) {
    SCOPED_TRACE(call);
    Loaded one(kText, device_);
    const auto plan = backend_.create_plan(one.graph);
    run(one, *plan);
    fail_call(call, 1, error);
    EXPECT_GE(run(one, *plan)["cudaLaunchKernel"], kKernels);
    EXPECT_THAT(mesh_.family().problems(), HasSubstr(no_graph(error)));
    expect_right(one);
    const Calls later = run(one, *plan);
    EXPECT_EQ(later["cudaLaunchKernel"], kKernels);
    EXPECT_EQ(later["cudaStreamBeginCapture"] + later["cudaGraphLaunch"], 0u) << "the capture is not retried";
    expect_right(one);
  }
}

TEST_F(Host, FailedLaunchNamesItsNode) {
  fail_call("cudaLaunchKernel", 2, cudaErrorInvalidConfiguration);
  backend_.compute_async(*plan_);
  expect_error("[CUDA0] cannot run b (mul): invalid configuration argument");
  EXPECT_EQ(run(loaded_, *plan_)["cudaGraphLaunch"], 1u)
      << "this counts as the second run, because the first one failed";
  expect_right(loaded_);
  fail_call("cudaGraphLaunch", 1, cudaErrorUnknown);
  backend_.compute_async(*plan_);
  expect_error("[CUDA0] cannot launch a graph");
  EXPECT_EQ(run(loaded_, *plan_)["cudaGraphLaunch"], 1u);
  expect_right(loaded_);
}

TEST_F(Host, HostTasksSeeFailuresOfTheGpu) {
  const auto task = [](void* object, const void*, bool failed) { *static_cast<int*>(object) = failed ? 2 : 1; };
  int told = 0;
  fail_call("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
  backend_.enqueue({task, &told, nullptr});
  expect_error("an illegal memory access was encountered");
  EXPECT_EQ(told, 2);
}

TEST_F(Host, FailedAllocationNamesRequestedAndFreeBytes) {
  const auto refused = [&](size_t bytes, const std::string& text) {
    EXPECT_THAT([&] { device_.buffer_type().allocate(bytes); },
                ThrowsMessage<OutOfMemory>(AllOf(StartsWith("[CUDA0] out of memory: "), HasSubstr(text))));
  };
  const size_t free = device_.memory().free;
  refused(device_.memory().total + 1, "requested");
  fail_call("cudaMallocAsync", 1, cudaErrorMemoryAllocation, 2);
  refused(4096, "4.0 KiB requested");
  EXPECT_EQ(device_.memory().free, free) << "the failed allocation releases its memory";
  EXPECT_NO_THROW(device_.buffer_type().allocate(4096));
  fail_call("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
  EXPECT_THAT([&] { device_.host_buffer_type()->allocate(4096); },
              ThrowsMessage<OutOfMemory>(StartsWith("[CUDA0] cannot pin 4.0 KiB of host memory")));
}

TEST_F(Host, InvalidRecordingRunsNothing) {
  run(loaded_, *plan_);
  const auto before = test::read_floats(*loaded_.graph.find("y"));
  loaded_.seed = 2;
  loaded_.fill_inputs();
  int told = 0;
  const auto task = [](void* object, const void*, bool) { ++*static_cast<int*>(object); };
  float host[8] = {};
  const auto event = device_.new_event();
  const std::vector<std::function<void()>> spoilers = {
      [&] {
        backend_.enqueue({task, &told, nullptr});
      },
      [&] { backend_.get_async(*loaded_.graph.find("y"), host, 0, sizeof(host)); },
      [&] { backend_.set_async(*loaded_.graph.find("y"), host, 0, sizeof(host)); },
      [&] { event->record(backend_); },
      [&] { event->wait(backend_); },
  };
  for (size_t i = 0; i < spoilers.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(backend_.start_recording());
    backend_.compute_async(*plan_);
    spoilers[i]();
    EXPECT_EQ(backend_.stop_recording(), nullptr);
    EXPECT_NO_THROW(backend_.synchronize());
    EXPECT_EQ(test::read_floats(*loaded_.graph.find("y")), before);
  }
  EXPECT_EQ(told, 0);
  EXPECT_EQ(mesh_.family().problems(), "") << "the caller made the recording invalid, not CUDA";
  run(loaded_, *plan_);
  expect_right(loaded_);
}

TEST_F(Host, ReportsRecordingsThatCannotBecomeGraphs) {
  for (const char* call : {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate"}) {
    CudaMesh mesh(1);
    Loaded one(kText, *mesh.devices()[0]);
    const auto plan = mesh.backend(0).create_plan(one.graph);
    fail_call(call, 1, cudaErrorUnknown);
    ASSERT_TRUE(mesh.backend(0).start_recording());
    mesh.backend(0).compute_async(*plan);
    EXPECT_EQ(mesh.backend(0).stop_recording(), nullptr);
    EXPECT_EQ(mesh.family().problems(), no_graph(cudaErrorUnknown)) << call;
  }
}

TEST_F(Host, FailedEventFailsItsStream) {
  const auto other = device_.init();
  const auto event = device_.new_event();
  fail_call("cudaEventRecord", 1, cudaErrorUnknown);
  event->record(backend_);
  event->wait(*other);
  event->synchronize();
  EXPECT_NO_THROW(other->synchronize()) << "the waiting stream continues";
  expect_error("[CUDA0] cannot record an event: unknown error");
  fail_call("cudaStreamWaitEvent", 1, cudaErrorUnknown);
  event->record(backend_);
  event->wait(*other);
  EXPECT_THAT([&] { other->synchronize(); }, ThrowsMessage<DeviceError>(HasSubstr("cannot wait for another stream")));
  fail_call("cudaEventSynchronize", 1, cudaErrorUnknown);
  event->synchronize();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_NO_THROW(backend_.synchronize());
  EXPECT_GE(run(loaded_, *plan_)["cudaLaunchKernel"], kKernels);
  expect_right(loaded_);
}

TEST_F(Host, FailedEventCreationThrowsInTheCaller) {
  const auto event = device_.new_event();
  std::vector<std::unique_ptr<Event>> all;  // these events empty the pool of events
  for (int i = 0; i < 300; ++i) all.push_back(device_.new_event()), all.back()->record(backend_);
  fail_call("cudaEventCreateWithFlags", 1, cudaErrorUnknown);
  EXPECT_THAT([&] { event->record(backend_); },
              ThrowsMessage<DeviceError>(HasSubstr("[GPU 0] cannot create an event")));
  event->record(backend_);
  event->synchronize();
  EXPECT_NO_THROW(backend_.synchronize());
}

// A watched stream records an event after each operation. These events show whether the stream makes progress.
TEST_F(Host, FailedProgressEventFailsItsStream) {
  auto& backend = static_cast<CudaBackend&>(backend_);
  backend.launcher().add_watch(this, {[](std::chrono::nanoseconds) {}, nullptr});
  const LaunchTask task{[](void*, const void*, const LaunchContext&, bool) {}, nullptr, nullptr};
  for (const char* call : {"cudaEventCreateWithFlags", "cudaEventRecord"}) {
    SCOPED_TRACE(call);
    fail_call(call, 1, cudaErrorUnknown);
    backend.push_launch(task);
    expect_error("[CUDA0] cannot record an event: unknown error");
    backend.push_launch(task);
    run(loaded_, *plan_);
    expect_right(loaded_);
  }
  ASSERT_TRUE(backend_.start_recording());
  backend_.compute_async(*plan_);
  const auto recording = backend_.stop_recording();
  ASSERT_NE(recording, nullptr);
  fail_call("cudaEventRecord", 1, cudaErrorUnknown);
  backend_.replay_async(*recording);
  expect_error("[CUDA0] cannot record an event: unknown error");
  backend.launcher().remove_watch(this);
}

class MetaHost : public testing::Test {
 protected:
  ~MetaHost() override { emulator::clear_faults(); }
  CudaMesh mesh_{1, 3};
};

TEST_F(MetaHost, RecordsSegmentsBetweenStagedCollectives) {
  DecoderPlan meta(mesh_, "staged");
  for (int i = 0; i < 4; ++i) meta.run();
  EXPECT_EQ(meta.run()["cudaGraphLaunch"], meta.run()["cudaGraphLaunch"]);
  EXPECT_GT(meta.run()["cudaGraphLaunch"], 2u) << "each rank's segments between collectives are graphs";
}

TEST_F(MetaHost, RecordsOneGraphPerRankAndRecordsAgainAfterFailures) {
  DecoderPlan meta(mesh_, "p2p");
  EXPECT_EQ(meta.run()["cudaStreamBeginCapture"], 0u);
  const Calls recorded = meta.run();
  EXPECT_EQ(recorded["cudaStreamBeginCapture"], 2u);
  EXPECT_EQ(recorded["cudaGraphUpload"], 2u) << "uploads before the first launch, which could wait for other ranks";
  EXPECT_EQ(recorded["cudaGraphLaunch"], 2u);
  const auto expect_replay = [&] {
    const Calls replayed = meta.run();
    EXPECT_EQ(replayed["cudaGraphLaunch"], 2u);
    EXPECT_EQ(replayed["cudaLaunchKernel"] + replayed["cudaStreamBeginCapture"], 0u);
  };
  for (int i = 0; i < 3; ++i) expect_replay();
  fail_call("cudaGraphLaunch", 1, cudaErrorUnknown, 2);
  meta.backend->compute_async(*meta.plan);
  EXPECT_THAT([&] { meta.backend->synchronize(); }, ThrowsMessage<DeviceError>(HasSubstr("launch a recorded graph")));
  meta.run();
  EXPECT_GE(meta.run()["cudaStreamBeginCapture"], 2u);
  expect_replay();
}

constexpr std::pair<int, int> kWays[] = {{0, 1}, {1, 0}};  ///< both directions between two GPUs

cudaMemPool_t pool_of(int gpu) {
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, gpu), cudaSuccess);
  return pool;
}

TEST(CudaFamily, VirtualDevicesDivideTheMemory) {
  const Environment environment("SHOAL_EMULATED_MEMORY", "4194304");
  CudaMesh mesh(2, 4);
  const auto devices = mesh.devices();
  ASSERT_EQ(devices.size(), 8u);
  EXPECT_EQ(devices[0]->name(), "CUDA0.0");
  EXPECT_EQ(devices[7]->name(), "CUDA1.3");
  EXPECT_EQ(devices[7]->props().device_id, "0000:02:00.0");
  for (Device* device : devices) {
    EXPECT_EQ(device->memory().total, 1u << 20);
    EXPECT_EQ(device->memory().free, 1u << 20);
    EXPECT_EQ(device->props().caps.peers.size(), 7u);
  }
  const auto most = devices[1]->buffer_type().allocate((1u << 20) - 4096);
  EXPECT_EQ(devices[1]->memory().free, 4096u);
  EXPECT_EQ(devices[0]->memory().free, 1u << 20);
  EXPECT_THAT([&] { devices[1]->buffer_type().allocate(8192); },
              ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("[CUDA0.1] out of memory: 8.0 KiB requested, 4.0 KiB free"))));
  EXPECT_NO_THROW(devices[0]->buffer_type().allocate(1u << 20));
  const Environment bad("SHOAL_CUDA_DEVICES_PER_GPU", "65");
  EXPECT_THAT([] { CudaFamily(); }, ThrowsMessage<InvalidArgument>(HasSubstr("SHOAL_CUDA_DEVICES_PER_GPU")));
}

TEST(CudaFamily, UnusedPoolCountsAsFreeAndIsReleasedOnDemand) {
  const Environment environment("SHOAL_EMULATED_MEMORY", "4194304");
  CudaMesh mesh(1);
  Device& device = *mesh.devices()[0];
  const size_t before = device.memory().free;
  device.buffer_type().allocate(1u << 20).reset();
  device.buffer_type().allocate(16).reset();
  const auto reserved = [] {
    uint64_t bytes = 0;
    EXPECT_EQ(cudaMemPoolGetAttribute(pool_of(0), cudaMemPoolAttrReservedMemCurrent, &bytes), cudaSuccess);
    return bytes;
  };
  EXPECT_GE(reserved(), 1u << 20) << "the pool keeps its reserve across synchronize()";
  EXPECT_EQ(device.memory().free, before);
  fail_call("cudaMallocAsync", 1, cudaErrorMemoryAllocation);
  EXPECT_NE(device.buffer_type().allocate(1000), nullptr);
  EXPECT_LT(reserved(), 1u << 20);
  emulator::clear_faults();
}

TEST(CudaFamily, ReportsReasonIfThereAreNoGpus) {
  CudaMesh mesh(0);
  EXPECT_EQ(mesh.size(), 0);
  EXPECT_EQ(mesh.family().reason(), "no CUDA-capable device is detected");
  const auto features = find_function(mesh.family(), functions::kFeatures);
  ASSERT_NE(features, nullptr);
  bool said = false;
  for (const auto& feature : features())
    said |= feature.name == "no_devices" && feature.value == mesh.family().reason();
  EXPECT_TRUE(said);
}

TEST(CudaFamily, SkipsBrokenGpus) {
  fail_call("cudaGetDeviceProperties", 2, cudaErrorECCUncorrectable);
  CudaMesh mesh(3);
  ASSERT_EQ(mesh.size(), 2);
  EXPECT_EQ(mesh.devices()[0]->name(), "CUDA0");
  EXPECT_EQ(mesh.devices()[1]->name(), "CUDA2");
  EXPECT_THAT(mesh.family().unusable(), AllOf(HasSubstr("CUDA1: "), HasSubstr("uncorrectable ECC error")));
  emulator::clear_faults();
}

// By default, CUDA threads yield only if there are more GPUs than CPU cores. But each device has a thread that waits,
// so the plug-in counts devices instead of GPUs.
TEST(CudaFamily, DeviceThreadsYieldIfThereAreManyDevices) {
  EXPECT_FALSE(waits_by_yielding(1, 2));
  EXPECT_FALSE(waits_by_yielding(15, 16));
  EXPECT_TRUE(waits_by_yielding(16, 16));
  const auto flags_with = [](unsigned devices, unsigned before) {
    cudaSetDeviceFlags(before);
    const Environment parts("SHOAL_CUDA_DEVICES_PER_GPU", std::to_string(devices));
    const CudaFamily family;
    family.devices()[0]->init();
    unsigned flags = 0;
    EXPECT_EQ(cudaGetDeviceFlags(&flags), cudaSuccess);
    return flags;
  };
  const unsigned processors = std::thread::hardware_concurrency();
  if (processors < 2 || processors > 64) GTEST_SKIP() << processors << " processors";
  EXPECT_EQ(flags_with(processors - 1, cudaDeviceScheduleAuto), unsigned{cudaDeviceScheduleAuto});
  EXPECT_EQ(flags_with(processors, cudaDeviceScheduleAuto), unsigned{cudaDeviceScheduleYield});
  EXPECT_EQ(flags_with(processors, cudaDeviceLmemResizeToMax),
            unsigned{cudaDeviceScheduleYield | cudaDeviceLmemResizeToMax});
  EXPECT_EQ(flags_with(processors, cudaDeviceScheduleBlockingSync | cudaDeviceLmemResizeToMax),
            unsigned{cudaDeviceScheduleBlockingSync | cudaDeviceLmemResizeToMax})
      << "another part of the process has chosen the flags";
  cudaSetDeviceFlags(cudaDeviceScheduleAuto);
}

/// Whether `gpu` may use memory of the peer's pool.
bool may_use(int gpu, int peer) {
  cudaMemLocation who{cudaMemLocationTypeDevice, gpu};
  cudaMemAccessFlags flags{};
  EXPECT_EQ(cudaMemPoolGetAccess(&flags, pool_of(peer), &who), cudaSuccess);
  return flags == cudaMemAccessFlagsProtReadWrite;
}

// Another library, or another part of the process, may have enabled peer access without sharing the memory pools. The
// plug-in must then share the pools.
TEST(CudaFamily, SharesPoolsOfAlreadyConnectedPeers) {
  const Environment gpus("SHOAL_EMULATED_GPUS", "2");
  for (const auto& [gpu, peer] : kWays) {
    const CurrentGpu current(gpu);
    const cudaMemAccessDesc none{{cudaMemLocationTypeDevice, gpu}, cudaMemAccessFlagsProtNone};
    EXPECT_EQ(cudaMemPoolSetAccess(pool_of(peer), &none, 1), cudaSuccess);
    cudaDeviceEnablePeerAccess(peer, 0);  // another test of this process may have connected these peers
    cudaGetLastError();
    EXPECT_FALSE(may_use(gpu, peer));
  }
  CudaMesh mesh(2);
  EXPECT_TRUE(may_use(0, 1));
  EXPECT_TRUE(may_use(1, 0));
  EXPECT_EQ(mesh.family().problems(), "");
  cudaGetLastError();
  EXPECT_EQ(turn_on_peer_access(0, 1), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next launch would report a leftover error";
}

TEST(CudaFamily, DoesNotConnectPeersWithoutSharedPools) {
  CudaMesh none(2);
  for (const auto& [gpu, peer] : kWays) turn_off_peer_access(gpu, peer);
  fail_call("cudaMemPoolSetAccess", 1, cudaErrorNotSupported, 2);
  CudaMesh mesh(2);
  emulator::clear_faults();
  for (const auto& [gpu, peer] : kWays) {
    const CurrentGpu current(gpu);
    EXPECT_EQ(cudaDeviceDisablePeerAccess(peer), cudaErrorPeerAccessNotEnabled);
    cudaGetLastError();
  }
}

// The driver may execute a copy on either of the two GPUs. Therefore, copies in both directions go through the host.
TEST(CudaFamily, WrongPeerCopiesAreReplacedByCopiesThroughTheHost) {
  for (const char* lie : {"0>1", "1>0"}) {
    const Environment lying("SHOAL_EMULATED_LYING_PEERS", lie);
    CudaMesh mesh(2);
    EXPECT_THAT(mesh.family().problems(), HasSubstr("corrupt data and are not used"));
    for (const auto& [from, to] : kWays) {
      Loaded here(kText, *mesh.devices()[static_cast<size_t>(from)]),
          there(kText, *mesh.devices()[static_cast<size_t>(to)]);
      Tensor &w = *here.weights.tensors()[0], &copy = *there.weights.tensors()[0];
      const auto values = test::read_floats(w);
      tensor_set(copy, std::vector<float>(8).data(), 0, copy.bytes());
      mesh.backend(from).copy_async(w, mesh.backend(to), copy);
      mesh.backend(to).synchronize();
      EXPECT_EQ(test::read_floats(copy), values) << lie << " " << from;
      EXPECT_FALSE(may_use(from, to)) << lie << " " << from;
    }
  }
}

// This test uses a pair of GPUs that no other test uses, because the plug-in checks each pair only once.
TEST(CudaFamily, RefusesBrokenPeerAccess) {
  const Environment lying("SHOAL_EMULATED_LYING_PEERS", "10>11"), none("SHOAL_NCCL_LIBRARY", "/nowhere/libnccl.so");
  CudaMesh mesh(12);
  const std::vector<Backend*> pair = {&mesh.backend(10), &mesh.backend(11)};
  collectives::Options options;
  options.implementation = "p2p";
  EXPECT_THAT(
      [&] { collectives::cuda::make_cuda_communicator(pair, options); },
      ThrowsMessage<DeviceError>(AllOf(HasSubstr("peer access does not work: GPU 10 reports peer access to GPU 11"),
                                       HasSubstr("use another communicator"))));
  options.implementation = "auto";
  EXPECT_FALSE(collectives::cuda::make_cuda_communicator(pair, options)->can_be_recorded()) << "must be staged";
}

}  // namespace
}  // namespace shoal::cuda
