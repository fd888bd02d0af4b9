// What goes on beside kernels that wait for each other, on an emulator that is as bad as a GPU may be: blocks need room
// (SHOAL_EMULATED_RESIDENCY), and calls that wait for the GPU keep others from launching there
// (SHOAL_EMULATED_DRIVER_LOCK). A rank of a collective waits for one that is not queued yet; then something else is
// done with the GPU, which must come to its end; then the collective must.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <thread>

#include "collectives/p2p/block_share.h"
#include "graph/ops/ops.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/p2p_rig.h"
#include "tests/meta/mesh.h"

namespace shoal::cuda {
namespace {

using collectives::all_reduce_case;
using collectives::Call;
using collectives::Communicator;
using collectives::p2p::Case;
using collectives::p2p::Layout;
using emulator::calls_in_progress;
using emulator::resident_blocks;
using test::CudaMesh;
using test::Environment;
using test::Loaded;
using test::wait_until;
using testing::Each;
using testing::Eq;

/// Longer than anything takes here that does not wait for its own end.
constexpr std::chrono::seconds kTimeout{30};

constexpr const char* kText = R"(
input %x f32 [8]
weight %w f32 [8]
%a = add(%x, %w)
%y = mul(%a, %x)
output %y
)";

/// A mesh of two devices with a collective that its second rank has not queued; the first one is of GPU 0.
class Pair {
 public:
  Pair(const CudaMesh& mesh, int first, int64_t count = 300'000) : Pair(mesh, first, first + 1, count) {}
  Pair(const CudaMesh& mesh, int first, int second, int64_t count)
      : backends_{&mesh.backend(first), &mesh.backend(second)},
        gpus_{mesh.gpu(first), mesh.gpu(second)},
        test_(all_reduce_case(2, DType::kF32, count)) {
    collectives::Options options;
    options.implementation = "p2p";
    options.timeout = kTimeout;
    communicator_ = collectives::cuda::make_cuda_communicator(backends_, options);
    test_.prepare(*this);
    for (int rank = 0; rank < 2; ++rank) calls_.push_back(test_.call(rank));
  }
  int size() const { return 2; }
  int gpu(int rank) const { return gpus_[static_cast<size_t>(rank)]; }
  Backend& backend(int rank) const { return *backends_[static_cast<size_t>(rank)]; }
  /// Of each rank's kernels.
  int blocks() const {
    int blocks = 1;
    while (Layout{2, blocks}.bytes() < communicator_->buffer_bytes(0)) ++blocks;
    return blocks;
  }
  void enqueue(int rank) { communicator_->enqueue(rank, calls_[static_cast<size_t>(rank)]); }
  /// All blocks of rank 0 wait for rank 1.
  void begin() {
    const int before = resident_blocks(0);
    enqueue(0);
    wait_until([&] { return resident_blocks(0) == before + blocks(); });
  }
  void end() {
    enqueue(1);
    expect_right();
  }
  void drop_communicator() { communicator_.reset(); }
  void expect_right() {
    for (Backend* backend : backends_) EXPECT_NO_THROW(backend->synchronize());
    test_.verify();
  }

 private:
  std::vector<Backend*> backends_;
  std::vector<int> gpus_;
  std::unique_ptr<Communicator> communicator_;
  Case test_;
  std::vector<Call> calls_;
};

class WaitingTest : public testing::Test {
 protected:
  ~WaitingTest() override { EXPECT_THAT(mesh_.errors(), Each(Eq(std::nullopt))); }

  static size_t count(const std::vector<std::string>& calls, const char* name) {
    return static_cast<size_t>(std::count(calls.begin(), calls.end(), name));
  }
  static void expect_right(const Loaded& on) {
    const auto x = test::read_floats(*on.graph.find("x")), w = test::read_floats(*on.weights.tensors()[0]);
    const auto y = test::read_floats(*on.graph.find("y"));
    for (size_t i = 0; i < y.size(); ++i) EXPECT_FLOAT_EQ(y[i], (x[i] + w[i]) * x[i]) << i;
  }

  const Environment modes_{
      {"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_DRIVER_LOCK", "1"}, {"SHOAL_EMULATED_PROCESSORS", "16"}};
  CudaMesh mesh_{1, 4};
};

TEST_F(WaitingTest, TwoMeshesFitOnAGpu) {
  const Environment small("SHOAL_EMULATED_PROCESSORS", "4");
  Pair first(mesh_, 0), second(mesh_, 2);
  first.begin();
  second.begin();
  first.enqueue(1);
  second.enqueue(1);
  first.expect_right();
  second.expect_right();
}

TEST_F(WaitingTest, AMeshThatDoesNotFitIsRefused) {
  const Environment small("SHOAL_EMULATED_PROCESSORS", "3");
  std::optional<Pair> first(std::in_place, mesh_, 0);
  EXPECT_THAT([&] { Pair(mesh_, 2); },
              testing::ThrowsMessage<DeviceError>(testing::HasSubstr(
                  "GPU 0 has 3 multiprocessors, 2 of them for other communicators: too few for 2 more ranks")));
  first.reset();
  Pair second(mesh_, 2);
  second.begin();
  second.end();
}

TEST(BlockShare, LeavesRoomForOtherMeshes) {
  const Environment gpus{{"SHOAL_EMULATED_GPUS", "2"}, {"SHOAL_EMULATED_PROCESSORS", "132"}};
  const auto blocks_of_meshes = [](const std::vector<int>& gpus, int meshes) {
    std::list<collectives::p2p::BlockShare> shares;
    std::vector<int> blocks;
    for (int i = 0; i < meshes; ++i) blocks.push_back(shares.emplace_back(gpus, 16).blocks());
    return blocks;
  };
  EXPECT_THAT(blocks_of_meshes({0, 1}, 3), testing::ElementsAre(16, 16, 16));
  EXPECT_THAT(blocks_of_meshes({0, 0}, 3), testing::ElementsAre(8, 8, 8));
  EXPECT_THAT(blocks_of_meshes(std::vector<int>(8, 0), 5), testing::ElementsAre(4, 3, 2, 1, 1));
  EXPECT_THAT(blocks_of_meshes(std::vector<int>(16, 0), 7), testing::ElementsAre(2, 1, 1, 1, 1, 1, 1));
}

TEST_F(WaitingTest, PinnedMemoryIsFreedLater) {
  BufferType& type = *mesh_.devices()[2]->host_buffer_type();
  auto pinned = type.allocate(5000), other = type.allocate(5000);
  Pair pair(mesh_, 0);
  pair.begin();
  const std::byte* const before = pinned->base();
  pinned.reset();
  pinned = type.allocate(5000);
  EXPECT_EQ(pinned->base(), before) << "memory that is to be freed is used first";
  pinned.reset();
  pair.end();
  emulator::record_calls();
  other.reset();
  EXPECT_EQ(count(emulator::take_calls(), "cudaFreeHost"), 2u);
}

TEST_F(WaitingTest, PinnedMemoryIsAllocatedBesideAMeshThatWaitsIfItMustBe) {
  BufferType& type = *mesh_.devices()[2]->host_buffer_type();
  Pair pair(mesh_, 0);
  pair.begin();
  const auto before = std::chrono::steady_clock::now();
  const auto pinned = type.allocate(7000);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(50)) << "not before it has waited";
  pair.end();
}

// Nothing runs in a broken stream, now or later.
TEST_F(WaitingTest, AStreamWithAnErrorKeepsNothingFromBeingFreed) {
  auto pinned = mesh_.devices()[2]->host_buffer_type()->allocate(9000);
  const Pair pair(mesh_, 0);
  emulator::fail_call("cudaStreamQuery", 1, cudaErrorLaunchFailure, 1000);
  emulator::record_calls();
  pinned.reset();
  EXPECT_EQ(count(emulator::take_calls(), "cudaFreeHost"), 1u);
  emulator::clear_faults();
}

TEST_F(WaitingTest, MemoryComesAndGoesBesideAMeshThatWaits) {
  BufferType& type = mesh_.devices()[2]->buffer_type();
  auto memory = type.allocate(5000), other = type.allocate(5000);
  Pair pair(mesh_, 0);
  pair.begin();
  memory.reset();
  memory = type.allocate(1000);  // waits for the stream in which the other was freed
  other.reset();
  pair.end();
}

TEST_F(WaitingTest, WhatAPoolKeepsIsNotGivenBackBesideAMeshThatWaits) {
  BufferType& type = mesh_.devices()[2]->buffer_type();
  Pair pair(mesh_, 0);
  pair.begin();
  emulator::fail_call("cudaMallocAsync", 1, cudaErrorMemoryAllocation);
  emulator::record_calls();
  EXPECT_THROW(type.allocate(1000), OutOfMemory);
  EXPECT_EQ(count(emulator::take_calls(), "cudaMemPoolTrimTo"), 0u);
  pair.end();
  emulator::fail_call("cudaMallocAsync", 1, cudaErrorMemoryAllocation);
  emulator::record_calls();
  EXPECT_NO_THROW(type.allocate(1000));
  EXPECT_EQ(count(emulator::take_calls(), "cudaMemPoolTrimTo"), 1u);
  emulator::clear_faults();
}

TEST_F(WaitingTest, AnotherMeshComesAndGoes) {
  Pair pair(mesh_, 0);
  pair.begin();
  Pair other(mesh_, 2, 1000);
  other.enqueue(0);
  other.end();
  emulator::record_calls();
  other.drop_communicator();
  EXPECT_EQ(count(emulator::take_calls(), "cudaMemPoolTrimTo"), 0u);
  pair.end();
  emulator::record_calls();
  pair.drop_communicator();
  EXPECT_EQ(count(emulator::take_calls(), "cudaMemPoolTrimTo"), 1u);
}

TEST_F(WaitingTest, PageableMemoryIsReadWhenTheStreamIsDone) {
  Loaded loaded(kText, *mesh_.devices()[0]);
  const Tensor& w = *loaded.weights.tensors()[0];
  std::vector<float> first(8), second(8);
  const std::vector<std::function<void(Backend&)>> reads = {
      [&](Backend& backend) { backend.get_async(w, first.data(), 0, w.bytes()); },
      [&](Backend& backend) { backend.read_bytes_async(w.data, second.data(), w.bytes()); }};
  for (const auto& read : reads) {
    Pair pair(mesh_, 0);
    pair.begin();
    read(pair.backend(0));
    wait_until([] { return calls_in_progress("cudaMemcpyAsync") + calls_in_progress("cudaStreamSynchronize") > 0; });
    pair.end();
  }
  EXPECT_EQ(first, test::read_floats(w));
  EXPECT_EQ(second, first);
}

// The driver copies it into memory of its own, and may wait for room there.
TEST_F(WaitingTest, MuchPageableMemoryIsWrittenWhenTheStreamIsDone) {
  const std::vector<float> source(20'000, 3.0f);
  const size_t bytes = source.size() * sizeof(float);
  TensorContext context;
  Tensor& tensor = *context.add("x", DType::kF32, {20'000, 1, 1, 1});
  const auto memory = allocate_tensors(context.tensors(), mesh_.devices()[0]->buffer_type(), Usage::kWeights);
  const std::vector<std::function<void(Backend&)>> writes = {
      [&](Backend& backend) { backend.set_async(tensor, source.data(), 0, bytes); },
      [&](Backend& backend) { backend.write_bytes_async(tensor.data, source.data(), bytes); }};
  for (const auto& write : writes) {
    tensor_set(tensor, std::vector<float>(20'000).data(), 0, bytes);
    Pair pair(mesh_, 0);
    pair.begin();
    write(pair.backend(0));
    wait_until([] { return calls_in_progress("cudaMemcpyAsync") + calls_in_progress("cudaStreamSynchronize") > 0; });
    pair.end();
    EXPECT_EQ(test::read_floats(tensor), source);
  }
}

TEST_F(WaitingTest, APlanIsUploadedBeforeItIsLaunched) {
  Loaded loaded(kText, *mesh_.devices()[0]);
  const auto plan = mesh_.backend(0).create_plan(loaded.graph);
  loaded.fill_inputs();
  const auto graph_calls = [&] {
    emulator::record_calls();
    mesh_.backend(0).compute_async(*plan);
    mesh_.backend(0).synchronize();
    std::vector<std::string> calls = emulator::take_calls();
    std::erase_if(calls,
                  [](const std::string& name) { return !name.starts_with("cudaGraph") || name == "cudaGraphDestroy"; });
    return calls;
  };
  EXPECT_THAT(graph_calls(), testing::IsEmpty());
  EXPECT_THAT(graph_calls(), testing::ElementsAre("cudaGraphInstantiate", "cudaGraphUpload", "cudaGraphLaunch"));
  EXPECT_THAT(graph_calls(), testing::ElementsAre("cudaGraphLaunch"));
}

TEST_F(WaitingTest, APlanIsNotCapturedBesideAMeshThatWaits) {
  Loaded loaded(kText, *mesh_.devices()[2]);
  const auto plan = mesh_.backend(2).create_plan(loaded.graph);
  loaded.fill_inputs();
  Pair pair(mesh_, 0);
  pair.begin();
  for (int i = 0; i < 3; ++i) {
    mesh_.backend(2).compute_async(*plan);
    mesh_.backend(2).synchronize();
  }
  expect_right(loaded);
  pair.end();
  emulator::record_calls();
  mesh_.backend(2).compute_async(*plan);
  mesh_.backend(2).synchronize();
  EXPECT_EQ(count(emulator::take_calls(), "cudaGraphInstantiate"), 1u) << "now it can be";
  expect_right(loaded);
}

// Or the kernel would wait for one that the call keeps from being launched.
TEST_F(WaitingTest, NoRankIsLaunchedBesideACallThatMayWaitForTheGpu) {
  Pair pair(mesh_, 0);
  const auto calls_beside = [](const std::function<void()>& queue) {
    std::vector<std::string> calls;
    EXPECT_TRUE(run_while_none_waits(0, kTimeout, [&] {
      emulator::record_calls();
      queue();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      calls = emulator::take_calls();
    }));
    return calls;
  };
  EXPECT_EQ(count(calls_beside([&] { pair.enqueue(0); }), "cudaLaunchKernel"), 0u);
  pair.end();
  const auto start = [&] {
    for (int rank : {0, 1}) ASSERT_TRUE(pair.backend(rank).start_recording());
  };
  EXPECT_EQ(count(calls_beside(start), "cudaStreamBeginCapture"), 0u);
  std::vector<std::unique_ptr<Recording>> recordings;
  for (int rank : {0, 1}) pair.enqueue(rank);
  for (int rank : {0, 1}) recordings.push_back(pair.backend(rank).stop_recording());
  ASSERT_THAT(recordings, Each(testing::NotNull()));
  const auto replay = [&] {
    for (int rank : {0, 1}) pair.backend(rank).replay_async(*recordings[static_cast<size_t>(rank)]);
  };
  EXPECT_EQ(count(calls_beside(replay), "cudaGraphLaunch"), 0u);
  pair.expect_right();
}

TEST(WaitingKernelsTest, NothingThatMayWaitForTheGpuIsCalledBesideALaunch) {
  const auto never = [] { ADD_FAILURE() << "between launches of a mesh"; };
  const auto gate = launch_waiting_kernels();
  std::thread([&] { EXPECT_FALSE(run_while_none_waits(0, std::chrono::milliseconds(0), never)); }).join();
}

TEST_F(WaitingTest, GraphsAreDestroyedLater) {
  Loaded loaded(kText, *mesh_.devices()[2]);
  auto plan = mesh_.backend(2).create_plan(loaded.graph);
  loaded.fill_inputs();
  emulator::record_calls();
  for (int i = 0; i < 3; ++i) mesh_.backend(2).compute_async(*plan);
  mesh_.backend(2).synchronize();
  EXPECT_EQ(count(emulator::take_calls(), "cudaGraphInstantiate"), 1u);
  ASSERT_TRUE(mesh_.backend(2).start_recording());
  mesh_.backend(2).compute_async(*plan);
  auto recording = mesh_.backend(2).stop_recording();
  ASSERT_NE(recording, nullptr);
  Pair pair(mesh_, 0);
  pair.begin();
  recording.reset();
  plan.reset();
  pair.end();
  emulator::record_calls();
  pair.drop_communicator();
  EXPECT_EQ(count(emulator::take_calls(), "cudaGraphExecDestroy"), 2u);
}

// Each GPU has one rank of the mesh: what waits for a GPU keeps the rank of another one from being launched.
TEST(WaitingOnTwoGpus, APlanIsNotCapturedBesideARankThatWaits) {
  const Environment modes{{"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_DRIVER_LOCK", "1"}};
  CudaMesh mesh(2, 2);
  Loaded loaded(kText, *mesh.devices()[1]);
  const auto plan = mesh.backend(1).create_plan(loaded.graph);
  loaded.fill_inputs();
  Pair pair(mesh, 0, 2, 300'000);
  pair.begin();
  for (int i = 0; i < 2; ++i) mesh.backend(1).compute_async(*plan);
  std::atomic<bool> done{false};
  const auto tell = [](void* object, const void*, bool) { *static_cast<std::atomic<bool>*>(object) = true; };
  mesh.backend(1).enqueue({tell, &done, nullptr});
  wait_until([&] { return done || calls_in_progress("cudaGraphInstantiate") > 0; });
  pair.end();
  EXPECT_THAT(mesh.errors(), Each(Eq(std::nullopt)));
}

// A family that tries copies between its GPUs, streams with memory of their own, and a mesh of GPUs of which no other
// test has tried the access.
TEST(WaitingBesideOtherGpus, FamiliesAndMeshesComeAndGo) {
  const Environment modes{
      {"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_DRIVER_LOCK", "1"}, {"SHOAL_EMULATED_PROCESSORS", "16"}};
  CudaMesh mesh(9, 3);
  ASSERT_EQ(mesh.gpu(26), 8);
  Pair pair(mesh, 0);
  pair.begin();
  {
    const CudaFamily family;
    const auto here = family.devices()[0]->init(), there = family.devices()[26]->init();
    EXPECT_EQ(family.problems(), "");
  }
  Pair other(mesh, 2, 26, 1000);
  other.enqueue(0);
  other.end();
  other.drop_communicator();
  pair.end();
  EXPECT_THAT(mesh.errors(), Each(Eq(std::nullopt)));
}

}  // namespace
}  // namespace shoal::cuda
