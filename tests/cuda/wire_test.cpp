// f32 sums that travel as bf16, and sizes measured for a mesh, as the communicator of CUDA devices uses them.
#include <gtest/gtest.h>

#include "collectives/thresholds.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/support/temporary.h"

namespace shoal::collectives {
namespace {

using test::CudaMesh;
using test::Environment;

float rounded(float value) {
  return bf16_to_f32(f32_to_bf16(value));
}

/// What rank 0 has of x[i] = (i + 1) / 3 + rank, summed over the mesh.
std::vector<float> summed(CudaMesh& mesh, Communicator& communicator, int64_t count) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<std::vector<float>> values;
  std::vector<Call> calls;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    auto& own = values.emplace_back(static_cast<size_t>(count));
    for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i + 1) / 3 + static_cast<float>(rank);
    buffers.push_back(mesh.backend(rank).device().buffer_type().allocate(own.size() * sizeof(float)));
    mesh.backend(rank).write_bytes_async(buffers.back()->base(), own.data(), own.size() * sizeof(float));
    calls.push_back({Collective::kAllReduce, DType::kF32, buffers.back()->base(), buffers.back()->base(), count});
  }
  for (int rank = 0; rank < mesh.size(); ++rank) communicator.enqueue(rank, calls[static_cast<size_t>(rank)]);
  std::vector<float> result(static_cast<size_t>(count));
  mesh.backend(0).read_bytes_async(buffers[0]->base(), result.data(), result.size() * sizeof(float));
  for (int rank = 0; rank < mesh.size(); ++rank) mesh.backend(rank).synchronize();
  return result;
}

TEST(CudaWire, SumsTravelAsTheOptionsSay) {
  const Environment wire("SHOAL_COMM_WIRE", "bf16");
  CudaMesh mesh(1, 2);
  const auto communicator = mesh.communicator("p2p");
  const std::vector<float> found = summed(mesh, *communicator, 1000);
  int differ = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const float x = static_cast<float>(i + 1) / 3;
    ASSERT_EQ(found[i], rounded(rounded(x) + rounded(x + 1))) << i;
    differ += found[i] != x + (x + 1);
  }
  EXPECT_GT(differ, 500) << "most sums are the same as without";
}

TEST(CudaWire, AnotherWireIsRefused) {
  const Environment wire("SHOAL_COMM_WIRE", "f16");
  EXPECT_THROW(Options(), InvalidArgument);
}

TEST(CudaThresholds, AreKeptForEachMesh) {
  const test::TemporaryFolder folder;
  const Environment file("SHOAL_COMM_THRESHOLDS", (folder.path() / "deep" / "collectives.json").string());
  {
    CudaMesh pair(1, 2), four(1, 4);
    EXPECT_EQ(find_thresholds(devices_of(pair.backends())), std::nullopt);
    save_thresholds(devices_of(pair.backends()), {4096});
    save_thresholds(devices_of(four.backends()), {8192});
    EXPECT_EQ(find_thresholds(devices_of(pair.backends())), Thresholds{4096});
    EXPECT_EQ(find_thresholds(devices_of(four.backends())), Thresholds{8192});
    save_thresholds(devices_of(pair.backends()), {1, 2});
    EXPECT_EQ(find_thresholds(devices_of(pair.backends())), (Thresholds{1, 2}));
    save_thresholds(devices_of(pair.backends()), {{}, 3});
    EXPECT_EQ(find_thresholds(devices_of(pair.backends())), (Thresholds{{}, 3}));
    save_thresholds(devices_of(pair.backends()), {});
    EXPECT_EQ(find_thresholds(devices_of(pair.backends())), std::nullopt);
    const std::string key = mesh_key(devices_of(pair.backends()));
    EXPECT_TRUE(key.ends_with(" x 2")) << key;
    EXPECT_EQ(key.find(", part "), std::string::npos) << key;
  }
}

// What is joined with a norm is what is one-shot: it tells how a communicator chooses.
TEST(CudaThresholds, SayWhatIsOneShot) {
  const test::TemporaryFolder folder;
  const Environment file("SHOAL_COMM_THRESHOLDS", (folder.path() / "collectives.json").string());
  CudaMesh pair(1, 2);
  const auto one_shot = [&] {
    const int64_t elements = pair.communicator("p2p")->fused_limits().elements;
    Options options;
    options.implementation = "p2p";
    EXPECT_EQ(cuda::describe_cuda_communicator(pair.devices(), options).fused.elements, elements);
    return elements;
  };
  const int64_t computed = one_shot();
  save_thresholds(pair.devices(), {.one_shot_to_bytes = 1024});
  EXPECT_EQ(one_shot(), 256);
  save_thresholds(pair.devices(), {.nccl_from_bytes = 1024});
  EXPECT_EQ(one_shot(), computed);
  EXPECT_GT(computed, 256);
  Options options;
  options.implementation = "p2p";
  options.thresholds = Thresholds{.one_shot_to_bytes = 512};
  EXPECT_EQ(cuda::describe_cuda_communicator(pair.devices(), options).fused.elements, 128) << "those given";
  EXPECT_EQ(cuda::make_cuda_communicator(pair.backends(), options)->fused_limits().elements, 128);
}

}  // namespace
}  // namespace shoal::collectives
