// Tests of kernels on the emulator. The tests cover the cooperation of threads, lanes and blocks, and the errors that
// the emulator reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "devices/cuda/kernels/mma.h"
#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/device_memory.h"
#include "tests/support/environment.h"

namespace shoal::cuda {
namespace {

using shoal::test::CudaArray;
using shoal::test::CudaStream;
using shoal::test::Environment;
using testing::Each;

constexpr uint32_t kAll = 0xffffffff;

__global__ void reverse_without_barrier(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = values[(threadIdx.x + 1) % 64];
  __syncthreads();
  values[threadIdx.x] = -1;
}

TEST(Emulator, ThreadOrderRevealsAMissingBarrier) {
  std::set<std::vector<int>> results;
  for (const char* order : {"forward", "reverse", "random"}) {
    const Environment setting("SHOAL_EMULATED_ORDER", order);
    const CudaStream stream;
    const CudaArray<int> out(size_t{64});
    launch(stream, reverse_without_barrier, dim3(1), dim3(64), 0, out.data());
    stream.synchronize();
    results.insert(out.get());
  }
  EXPECT_EQ(results.size(), 3u);
}

__global__ void votes_of_rest(int* out) {
  if (threadIdx.x >= 20) return;
  out[threadIdx.x] = __all_sync(kAll, 1);
}

TEST(Emulator, DoesNotWaitForEndedLanes) {
  const CudaStream stream;
  const CudaArray<int> out(size_t{20});
  launch(stream, votes_of_rest, dim3(1), dim3(32), 0, out.data());
  stream.synchronize();
  EXPECT_THAT(out.get(), Each(1));
}

__global__ void dynamic_shared(float* out) {
  SHOAL_DYNAMIC_SHARED(float, values);
  out[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
  values[threadIdx.x] = 1;
}

TEST(Emulator, SynchronizedStreamIsIdle) {
  const CudaStream stream;
  CudaArray<float> values(16);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(cudaMemsetAsync(values.data(), 0, 16 * sizeof(float), stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    ASSERT_EQ(cudaStreamQuery(stream), cudaSuccess) << i;
  }
}

TEST(Emulator, UnwrittenMemoryIsNaN) {
  const CudaStream stream;
  const CudaArray<float> out(size_t{128}), fresh(size_t{10});
  launch(stream, dynamic_shared, dim3(4), dim3(32), 32 * sizeof(float), out.data());
  stream.synchronize();
  for (const float value : out.get()) EXPECT_TRUE(std::isnan(value));
  for (const float value : fresh.get()) EXPECT_TRUE(std::isnan(value));
}

__global__ void copy_asynchronously(const uint4* in, uint4* out, uint4* early) {
  __shared__ uint4 values[3];
  for (int i = 0; i < 2; ++i) {
    copy_async_16(&values[i], &in[i]);
    copy_async_commit();
  }
  copy_async_16(&values[2], in, false);
  copy_async_commit();
  copy_async_wait<2>();
  for (int i = 0; i < 3; ++i) early[i] = values[i];
  copy_async_wait<0>();
  for (int i = 0; i < 3; ++i) out[i] = values[i];
}

TEST(Emulator, AsynchronousCopiesAreVisibleOnlyAfterTheWait) {
  const CudaStream stream;
  const CudaArray<uint4> in(std::vector<uint4>{{1, 2, 3, 4}, {5, 6, 7, 8}}), out(size_t{3}), early(size_t{3});
  launch(stream, copy_asynchronously, dim3(1), dim3(1), 0, in.data(), out.data(), early.data());
  stream.synchronize();
  EXPECT_EQ(early.get()[0].w, 4u);
  EXPECT_EQ(early.get()[1].w, 0xffffffffu) << "the value must be undefined before the wait";
  EXPECT_EQ(out.get()[0].x, 1u);
  EXPECT_EQ(out.get()[1].w, 8u);
  EXPECT_EQ(out.get()[2].y, 0u);
}

TEST(Emulator, ComputesIntegerInstructions) {
  EXPECT_EQ(__dp4a(0x01ff7f80, 0x02037f80, 10), 10 + 2 - 3 + 127 * 127 + 128 * 128);
  EXPECT_EQ(dot_unsigned(0x01ff7f80, 0x02037f80, 10), 10 + 2 + 255 * 3 + 127 * 127 - 128 * 128);
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x7520), 0x77552200u);
  EXPECT_EQ(__byte_perm(0x80ff0011, 0, 0xb8ab), 0xff00ffffu);
  EXPECT_EQ(__funnelshift_r(0x80000001, 0x12345678, 8), 0x78800000u);
  EXPECT_EQ(__clz(1), 31);
}

__global__ void half_at_barrier() {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}
__global__ void two_barriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void lane_missing(int* out) {
  if (threadIdx.x < 31) out[threadIdx.x] = __shfl_xor_sync(kAll, 1, 1);
}
__global__ void lane_elsewhere(int* out) {
  if (threadIdx.x < 31) {
    out[threadIdx.x] = __shfl_sync(kAll, 1, 0);
  } else {
    __syncthreads();
  }
}
__global__ void not_in_mask(int* out) {
  out[threadIdx.x] = __shfl_sync(0xffff, 1, 0);
}
__global__ void half_a_product(float* d) {
  float fd[4] = {};
  const uint32_t fa[4] = {}, fb[2] = {};
  if (threadIdx.x < 16) mma_f16(fd, fa, fb);
  d[threadIdx.x] = fd[0];
}
__global__ void misaligned(char* in) {
  __shared__ uint4 value;
  copy_async_16(&value, in + 4);
}

template <class... Parameters, class... Arguments>
void run_one(void (*kernel)(Parameters...), Arguments... arguments) {
  const CudaStream stream;
  launch(stream, kernel, dim3(1), dim3(64), 0, arguments...);
  stream.synchronize();
}

TEST(EmulatorDeathTest, ReportsDeadlocks) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      run_one(half_at_barrier),
      "waits for ever; 64 of 64(.|\n)*32 in __syncthreads at .*emulator_test.cpp:[0-9]+ .*half_at_barrier(.|\n)*"
      "32 in __syncwarp");
  EXPECT_DEATH(run_one(two_barriers),
               "launched at .*emulator_test.cpp(.|\n)*all threads that meet must be at the same");
}

TEST(EmulatorDeathTest, ReportsMissingLanes) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  static int out[64];
  EXPECT_DEATH(run_one(lane_missing, out), "lane 30 reads lane 31, which does not take part");
  EXPECT_DEATH(run_one(lane_elsewhere, out), "waits for ever(.|\n)*31 in __shfl_sync");
  EXPECT_DEATH(run_one(not_in_mask, out), "mask 0xffff, which lacks the calling lane 16");
  static float d[64];
  EXPECT_DEATH(run_one(half_a_product, d), "with only lanes 0xffff present");
}

TEST(EmulatorDeathTest, ReportsMisalignedAddresses) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  alignas(16) static char in[32];
  EXPECT_DEATH(run_one(misaligned, in), "not aligned to 16");
}

#ifdef __SANITIZE_ADDRESS__
__global__ void write_behind(int* out, int size) {
  __syncthreads();
  if (threadIdx.x == 33) out[size] = 1;
}
__global__ void write_behind_shared() {
  SHOAL_DYNAMIC_SHARED(int, values);
  __syncthreads();
  values[threadIdx.x] = 1;
}

TEST(EmulatorDeathTest, AddressSanitizerDetectsOverflowsInKernels) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const CudaArray<int> out(size_t{100});
  EXPECT_DEATH(run_one(write_behind, out.data(), 100), "heap-buffer-overflow(.|\n)*write_behind");
  const CudaStream stream;
  EXPECT_DEATH(
      {
        launch(stream, write_behind_shared, dim3(1), dim3(64), 63 * sizeof(int));
        stream.synchronize();
      },
      "heap-buffer-overflow(.|\n)*write_behind_shared");
}
#endif

}  // namespace
}  // namespace shoal::cuda
