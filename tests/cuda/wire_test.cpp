// Options of the communicator of CUDA devices: the type in which f32 sums are sent, and thresholds measured for a mesh.
#include <gtest/gtest.h>

#include "collectives/thresholds.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/support/temporary.h"

namespace shoal::collectives {
namespace {

using test::CudaMesh;
using test::Environment;

// The p2p communicator fuses no product if all_reduce sends bf16.
TEST(CudaWire, OptionsChooseTheWireType) {
  for (const char* wire : {"f32", "bf16"}) {
    const Environment environment("SHOAL_COMM_WIRE", wire);
    CudaMesh mesh(1, 2);
    EXPECT_EQ(mesh.communicator("p2p")->fused_limits().products == 0, std::string_view(wire) == "bf16");
  }
}

TEST(CudaWire, RefusesUnsupportedWireTypes) {
  const Environment wire("SHOAL_COMM_WIRE", "f16");
  EXPECT_THROW(Options(), InvalidArgument);
}

TEST(CudaThresholds, ThresholdsAreStoredPerMesh) {
  const test::TemporaryFolder folder;
  const Environment file("SHOAL_COMM_THRESHOLDS", (folder.path() / "deep" / "collectives.json").string());
  CudaMesh pair(1, 2), four(1, 4);
  const auto devices = devices_of(pair.backends());
  EXPECT_EQ(find_thresholds(devices), std::nullopt);
  save_thresholds(four.devices(), {8192});
  for (const Thresholds& some : {Thresholds{4096}, Thresholds{1, 2}, Thresholds{{}, 3}}) {
    save_thresholds(devices, some);
    EXPECT_EQ(find_thresholds(devices), some);
  }
  EXPECT_EQ(find_thresholds(four.devices()), Thresholds{8192});
  save_thresholds(devices, {});
  EXPECT_EQ(find_thresholds(devices), std::nullopt);
  const std::string key = mesh_key(devices);
  EXPECT_TRUE(key.ends_with(" x 2")) << key;
  EXPECT_EQ(key.find(", part "), std::string::npos) << key;
}

// The maximum size of a fused norm equals the maximum size of a one-shot all_reduce. Therefore, the maximum size of a
// fused norm shows which threshold the communicator uses.
TEST(CudaThresholds, ThresholdsLimitOneShotMessages) {
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
  EXPECT_EQ(cuda::describe_cuda_communicator(pair.devices(), options).fused.elements, 128)
      << "given thresholds override saved ones";
  EXPECT_EQ(cuda::make_cuda_communicator(pair.backends(), options)->fused_limits().elements, 128);
}

}  // namespace
}  // namespace shoal::collectives
