// Tests of GPUs for which the plug-in has no code (devices/cuda/architectures.h).
#include "devices/cuda/architectures.h"

#include <gmock/gmock.h>

#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_family.h"
#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/support/environment.h"

namespace shoal::cuda {
namespace {

using testing::HasSubstr;

TEST(Architectures, CodeRunsOnNewerRevisionsOfItsGeneration) {
  for (const int gpu : {80, 86, 89}) EXPECT_TRUE(runs_on(80, gpu)) << gpu;
  EXPECT_TRUE(runs_on(120, 121));
  EXPECT_FALSE(runs_on(89, 86));
  EXPECT_FALSE(runs_on(80, 90));
  EXPECT_FALSE(runs_on(90, 100));
  EXPECT_FALSE(runs_on(100, 120));
}

TEST(Architectures, EmbeddedGpusNeedTheirOwnCode) {
  for (const int gpu : {87, 88, 101, 110}) EXPECT_TRUE(runs_on(gpu, gpu)) << gpu;
  for (const int gpu : {87, 88}) EXPECT_FALSE(runs_on(80, gpu)) << gpu;
  EXPECT_FALSE(runs_on(100, 101));
  EXPECT_FALSE(runs_on(87, 89));
  EXPECT_FALSE(runs_on(101, 103));
  EXPECT_FALSE(runs_on(110, 111));
}

TEST(Architectures, GpuWithoutCodeIsReportedWithReasonAndRemedy) {
  constexpr int kBuilt[] = {80, 90};
  for (const int gpu : {80, 86, 89, 90}) EXPECT_EQ(lack_of_code(kBuilt, gpu), "") << gpu;
  EXPECT_EQ(lack_of_code(kBuilt, 120),
            "the plug-in has no code for this GPU (only for sm_80, sm_90): "
            "build with -DSHOAL_CUDA_ARCHITECTURES=\"80;90;120\"");
  EXPECT_EQ(lack_of_code(kBuilt, 75), "shoal needs compute capability 8.0 or later");
}

__global__ void do_nothing() {}

TEST(Architectures, OnlyGpusWithCodeAreDevices) {
  const test::Environment gpus{{"SHOAL_EMULATED_GPUS", "4"}, {"SHOAL_EMULATED_SM", "100,90,100,80"}};
  const CudaFamily family;
  ASSERT_EQ(family.devices().size(), 2U);
  EXPECT_EQ(family.devices()[0]->name(), "CUDA1");
  EXPECT_EQ(family.devices()[1]->name(), "CUDA3");
  EXPECT_EQ(family.reason(), "");
  EXPECT_THAT(family.unusable(),
              HasSubstr("CUDA0, CUDA2 (Emulated GPU, sm_100): the plug-in has no code for this GPU"));
  for (const auto& [gpu, status] : {std::pair{0, cudaErrorNoKernelImageForDevice}, std::pair{3, cudaSuccess}}) {
    const CurrentGpu current(gpu);
    launch(nullptr, do_nothing, dim3(1), dim3(1), 0);
    EXPECT_EQ(cudaGetLastError(), status) << gpu;
  }
}

}  // namespace
}  // namespace shoal::cuda
