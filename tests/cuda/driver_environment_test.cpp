// The test programs of tests/cuda create streams without a family of devices, and kernels of these streams wait for
// each other. Therefore each program sets the environment variables that the plug-in sets when it is loaded.
#include "devices/cuda/driver_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "devices/cuda/cuda_family.h"
#include "tests/support/environment.h"

namespace shoal::cuda {
namespace {

/// This initialiser runs before main() and before any CUDA call.
const bool g_is_set = (set_driver_environment(), true);

TEST(DriverEnvironment, IsSetBeforeAnyCudaCall) {
  EXPECT_TRUE(g_is_set);
  for (const char* name : {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"}) {
    EXPECT_NE(std::getenv(name), nullptr) << name;
  }
}

TEST(DriverEnvironment, KeepsVariablesThatAreAlreadySet) {
  const test::Environment loading("CUDA_MODULE_LOADING", "LAZY");
  const std::string before = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "7", 1);
  set_driver_environment();
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "LAZY");
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "7");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  set_driver_environment();
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", before.c_str(), 1);
}

TEST(DriverEnvironment, IsSetByTheCudaFamily) {
  const test::Environment without{{"CUDA_DEVICE_MAX_CONNECTIONS", std::nullopt}, {"CUDA_MODULE_LOADING", std::nullopt}};
  const CudaFamily family;
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  EXPECT_STREQ(std::getenv("CUDA_MODULE_LOADING"), "EAGER");
}

}  // namespace
}  // namespace shoal::cuda
