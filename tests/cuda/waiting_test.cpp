// The tests queue GPU work while a collective waits. Rank 0 of the collective waits for rank 1, which has not queued
// the collective. The other work must complete before the collective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <list>

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

/// All work in these tests takes less time than the time-out, so the time-out expires only in a deadlock.
constexpr std::chrono::seconds kTimeout{30};

constexpr const char* kText = R"(
input %x f32 [8]
weight %w f32 [8]
%a = add(%x, %w)
%y = mul(%a, %x)
output %y
)";

/// A mesh of two devices with one collective. enqueue(rank) queues the collective on one rank. Rank 0 is on GPU 0.
class Pair {
 public:
  Pair(const CudaMesh& mesh, int first)
      : backends_{&mesh.backend(first), &mesh.backend(first + 1)},
        gpus_{mesh.gpu(first), mesh.gpu(first + 1)},
        test_(all_reduce_case(2, DType::kF32, 300'000)) {
    collectives::Options options;
    options.implementation = "p2p";
    options.timeout = kTimeout;
    communicator_ = collectives::cuda::make_cuda_communicator(backends_, options);
    test_.prepare(*this);
  }
  int size() const { return 2; }
  int gpu(int rank) const { return gpus_[static_cast<size_t>(rank)]; }
  Backend& backend(int rank) const { return *backends_[static_cast<size_t>(rank)]; }
  /// Number of blocks of the collective's kernel on each rank.
  int blocks() const {
    int blocks = 1;
    while (Layout{2, blocks}.bytes() < communicator_->buffer_bytes(0)) ++blocks;
    return blocks;
  }
  void enqueue(int rank) { test_.queue(*communicator_, {rank}); }
  /// Queues the collective on rank 0 and waits until all blocks of its kernel run. These blocks wait for rank 1.
  void begin() {
    const int before = resident_blocks(0);
    enqueue(0);
    wait_until([&] { return resident_blocks(0) == before + blocks(); });
  }
  void end() {
    enqueue(1);
    expect_right();
  }
  void expect_right() {
    for (Backend* backend : backends_) EXPECT_NO_THROW(backend->synchronize());
    test_.verify();
  }

 private:
  std::vector<Backend*> backends_;
  std::vector<int> gpus_;
  std::unique_ptr<Communicator> communicator_;
  Case test_;
};

class Waiting : public testing::Test {
 protected:
  ~Waiting() override { EXPECT_THAT(mesh_.errors(), Each(Eq(std::nullopt))); }

  const Environment modes_{{"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_PROCESSORS", "16"}};
  CudaMesh mesh_{1, 4};
};

TEST_F(Waiting, TwoMeshesFitOnAGpu) {
  const Environment small("SHOAL_EMULATED_PROCESSORS", "4");
  Pair first(mesh_, 0), second(mesh_, 2);
  first.begin();
  second.begin();
  first.enqueue(1);
  second.enqueue(1);
  first.expect_right();
  second.expect_right();
}

TEST_F(Waiting, RefusesMeshesThatDoNotFit) {
  const Environment small("SHOAL_EMULATED_PROCESSORS", "3");
  std::optional<Pair> first(std::in_place, mesh_, 0);
  EXPECT_THAT([&] { Pair(mesh_, 2); },
              testing::ThrowsMessage<DeviceError>(testing::HasSubstr(
                  "3 multiprocessors, and other communicators use 2 of them; each of the 2 new ranks needs a ")));
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
    for (int i = 0; i < meshes; ++i) blocks.push_back(shares.emplace_back(gpus, 16, true).blocks());
    return blocks;
  };
  EXPECT_THAT(blocks_of_meshes({0, 1}, 3), testing::ElementsAre(16, 16, 16));
  EXPECT_THAT(blocks_of_meshes({0, 0}, 3), testing::ElementsAre(8, 8, 8));
  EXPECT_THAT(blocks_of_meshes(std::vector<int>(8, 0), 5), testing::ElementsAre(4, 3, 2, 1, 1));
  EXPECT_THAT(blocks_of_meshes(std::vector<int>(16, 0), 7), testing::ElementsAre(2, 1, 1, 1, 1, 1, 1));
}

TEST(BlockShare, KernelsMayOverlapOnlyIfEachRankHasAWholeGpu) {
  const Environment gpus{{"SHOAL_EMULATED_GPUS", "4"}, {"SHOAL_EMULATED_PROCESSORS", "132"}};
  const auto next_may_start = [](const std::vector<int>& gpus, bool whole_gpus = true) {
    return collectives::p2p::BlockShare(gpus, 16, whole_gpus).next_may_start();
  };
  EXPECT_FALSE(next_may_start({0, 0}));
  EXPECT_FALSE(next_may_start({0, 1}, false));
  {
    const collectives::p2p::BlockShare first(std::vector{0, 1}, 16, true);
    EXPECT_TRUE(first.next_may_start());
    EXPECT_FALSE(next_may_start({1, 2}));
    EXPECT_TRUE(next_may_start({2, 3}));
  }
  EXPECT_TRUE(next_may_start({1, 2}));
}

TEST_F(Waiting, MemoryCanBeAllocatedAndFreedWhileAMeshWaits) {
  BufferType& type = mesh_.devices()[2]->buffer_type();
  auto memory = type.allocate(5000), other = type.allocate(5000);
  Pair pair(mesh_, 0);
  pair.begin();
  memory.reset();
  memory = type.allocate(1000);  // waits for the stream in which the old memory was freed
  other.reset();
  pair.end();
}

// The copies include large writes. The driver copies the bytes of a large write into its own memory, and may wait for
// room in this memory.
TEST_F(Waiting, PageableCopiesWaitForTheStream) {
  const std::vector<float> source(20'000, 3.0f);
  const size_t bytes = source.size() * sizeof(float);
  TensorContext context;
  Tensor& x = *context.add("x", DType::kF32, {20'000, 1, 1, 1});
  const auto memory = allocate_tensors(context.tensors(), mesh_.devices()[0]->buffer_type(), Usage::kWeights);
  std::vector<float> result(source.size());
  const auto beside_a_mesh = [&](const std::function<void(Backend&)>& copy) {
    Pair pair(mesh_, 0);
    pair.begin();
    copy(pair.backend(0));
    wait_until([] { return calls_in_progress("cudaMemcpyAsync") + calls_in_progress("cudaStreamSynchronize") > 0; });
    pair.end();
  };
  for (const bool of_tensor : {true, false}) {
    tensor_set(x, std::vector<float>(source.size()).data(), 0, bytes);
    beside_a_mesh([&](Backend& backend) {
      of_tensor ? backend.set_async(x, source.data(), 0, bytes)
                : backend.write_bytes_async(x.data, source.data(), bytes);
    });
    EXPECT_EQ(test::read_floats(x), source);
    result.assign(source.size(), 0);
    beside_a_mesh([&](Backend& backend) {
      of_tensor ? backend.get_async(x, result.data(), 0, bytes)
                : backend.read_bytes_async(x.data, result.data(), bytes);
    });
    EXPECT_EQ(result, source);
  }
}

TEST_F(Waiting, GraphOfAPlanIsUploadedBeforeItsLaunch) {
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

}  // namespace
}  // namespace shoal::cuda
