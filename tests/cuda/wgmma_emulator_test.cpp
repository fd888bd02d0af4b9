// Misuse of warpgroup products on the emulator, such as a missing wait.
#include <gtest/gtest.h>

#include <cmath>

#include "devices/cuda/kernels/wgmma.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"

namespace shoal::cuda {
namespace {

using shoal::test::CudaArray;
using shoal::test::CudaStream;

enum class Fault : uint8_t { kNone, kNoFence, kOverwrites, kDataCameLate, kEndsEarly, kReadsEarly, kNoBarrier };

/// Computes two groups of two products each. All operands are ones, so each product adds 16 to each sum.
__global__ void twice(Fault fault, float* d) {
  SHOAL_DYNAMIC_SHARED(uint16_t, shared);
  const int thread = static_cast<int>(threadIdx.x);
  const uint16_t one = __half_as_ushort(__float2half_rn(1));
  for (int i = thread; i < (64 + 128) * 16; i += 128) shared[i] = one;
  fence_async();
  __syncthreads();
  if (fault == Fault::kDataCameLate && thread < 16) shared[thread] = 0;
  __syncthreads();
  const uint64_t a = operand_descriptor(shared_address(shared), 128, 256, Swizzle::kNone);
  const uint64_t b = descriptor_at(a, 64 * 16 * 2);
  float sums[64] = {};
  for (int group = 0; group < 2; ++group) {
    if (fault != Fault::kNoFence || group == 0) wgmma_fence();
    wgmma_f16(sums, a, b);
    wgmma_f16(sums, a, b);
    wgmma_commit();
  }
  if (fault == Fault::kEndsEarly) return;
  if (fault == Fault::kOverwrites) shared[thread] = 0;
  if (fault == Fault::kDataCameLate) shared[thread] = one;
  wgmma_wait<1>();
  if (fault == Fault::kReadsEarly) d[thread] = sums[0];
  wgmma_wait<0>();
  if (fault != Fault::kNoBarrier) sync_warpgroup();
  shared[thread] = 0;
  if (fault != Fault::kReadsEarly) d[thread] = sums[63];
}

std::vector<float> run_twice(Fault fault) {
  const CudaStream stream;
  const CudaArray<float> d(size_t{128});
  launch(stream, twice, dim3(1), dim3(128), 16 * 1024, fault, d.data());
  stream.synchronize();
  return d.get();
}

TEST(WgmmaEmulator, SuccessiveProductsAccumulateInTheSameRegisters) {
  EXPECT_EQ(run_twice(Fault::kNone), std::vector<float>(128, 64.0f));
}
TEST(WgmmaEmulator, SumsAreNaNWhileProductsAreInFlight) {
  for (const float sum : run_twice(Fault::kReadsEarly)) EXPECT_TRUE(std::isnan(sum));
}
TEST(WgmmaEmulatorDeathTest, ReportsMisuse) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(run_twice(Fault::kNoFence), "without wgmma_fence");
  EXPECT_DEATH(run_twice(Fault::kOverwrites), "changed shared memory that a product was reading");
  EXPECT_DEATH(run_twice(Fault::kNoBarrier), "changed shared memory that a product was reading");
  EXPECT_DEATH(run_twice(Fault::kDataCameLate), "changed shared memory that a product was reading");
  EXPECT_DEATH(run_twice(Fault::kEndsEarly), "ends while products of its warp are in flight");
}

}  // namespace
}  // namespace shoal::cuda
