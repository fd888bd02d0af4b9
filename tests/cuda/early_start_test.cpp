// Which GPUs may start kernels early, by what a build has for them (devices/cuda/kernels/early_start.h).
#include "devices/cuda/kernels/early_start.h"

#include <gtest/gtest.h>

namespace shoal::cuda {
namespace {

TEST(EarlyStartOfABuild, NeedsAGpuThatCanAndCodeThatWaits) {
  EXPECT_TRUE(can_start_early({900}, 90));
  EXPECT_TRUE(can_start_early({800, 890, 900}, 90));
  EXPECT_FALSE(can_start_early({800, 890, 900}, 89)) << "the GPU cannot";
  EXPECT_FALSE(can_start_early({800}, 90)) << "what runs there was compiled for 8.0 and does not wait";
  EXPECT_FALSE(can_start_early({800, 1000}, 90)) << "code for 10.0 does not run there";
}

TEST(EarlyStartOfABuild, OfTwoOlderArchitecturesEitherMayRun) {
  EXPECT_TRUE(can_start_early({900}, 100)) << "from the PTX for 9.0";
  EXPECT_FALSE(can_start_early({800, 900}, 100)) << "that for 9.0 need not have PTX";
  EXPECT_TRUE(can_start_early({800, 900, 1000}, 100));
  EXPECT_TRUE(can_start_early({800, 900, 1000}, 103)) << "runs what is for 10.0";
  EXPECT_FALSE(can_start_early({800, 1030}, 100));
}

}  // namespace
}  // namespace shoal::cuda
