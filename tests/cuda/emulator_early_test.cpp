// Tests of kernels that launch_early() launches on the emulator. With SHOAL_EMULATED_EARLY, kernels that read or write
// before they call wait_for_previous() give wrong results. Kernels that first call wait_for_previous() give correct
// results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/pinned_word.h"
#include "tests/support/environment.h"

namespace shoal::cuda {
namespace {

using emulator::resident_blocks;
using test::CudaArray;
using test::CudaStream;
using test::Environment;
using test::PinnedWord;
using test::wait_until;
using testing::Each;
using testing::ElementsAre;

constexpr int kBlocks = 6;
/// Expected results of a kernel whose early blocks read 0 and whose other blocks read 1.
const std::vector<int> kEarly{0, 0, 1, 1, 0, 0};

__global__ void hold_back(const uint32_t* word) {
  while (load_acquire(word) == 0) spin_pause();
}
__global__ void add_one(int* x) {
  let_next_start();
  wait_for_previous();
  if (threadIdx.x == 0) x[blockIdx.x] += 1;
}
__global__ void copy_too_early(const int* from, int* to) {
  const int value = from[blockIdx.x];
  wait_for_previous();
  to[blockIdx.x] = value;
}
__global__ void copy(const int* from, int* to) {
  wait_for_previous();
  to[blockIdx.x] = from[blockIdx.x];
}
__global__ void clear_too_early(int* x) {
  x[blockIdx.x] = 0;
  wait_for_previous();
}
/// Only one thread calls wait_for_previous(). The other threads wait for this thread at a barrier.
__global__ void copy_after_wait_of_one(const int* from, int* to) {
  __shared__ int values[32];
  if (threadIdx.x == 31) wait_for_previous();
  __syncthreads();
  values[threadIdx.x] = from[blockIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) to[blockIdx.x] = values[31];
}
__global__ void never_wait() {}

/// Tests on a stream of GPU 0. Either all work is queued before any of it runs, or a graph captures the work.
class EarlyStart : public testing::TestWithParam<bool> {
 protected:
  void run(const std::function<void()>& queue) {
    if (GetParam()) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      queue();
      ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
      ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
      stream_.synchronize();
      ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
      ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    } else {
      PinnedWord go;
      launch(stream_, hold_back, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(go.get()));
      queue();
      go.set();
      stream_.synchronize();
    }
  }
  template <class... Parameters, class... Arguments>
  void queue(void (*kernel)(Parameters...), Arguments... arguments) {
    launch(stream_, kernel, dim3(kBlocks), dim3(1), 0, arguments...);
  }
  template <class... Parameters, class... Arguments>
  void queue_early(void (*kernel)(Parameters...), Arguments... arguments) {
    launch_early(stream_, kernel, dim3(kBlocks), dim3(1), 0, arguments...);
  }

  const Environment mode_{"SHOAL_EMULATED_EARLY", "1"};
  const CudaStream stream_;
  const CudaArray<int> x_{std::vector<int>(kBlocks, 0)}, y_{std::vector<int>(kBlocks, -1)},
      z_{std::vector<int>(kBlocks, -1)};
};
INSTANTIATE_TEST_SUITE_P(Launches, EarlyStart, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Graphs, EarlyStart, testing::Values(true));

// The first and last blocks of a kernel begin early only if the kernel directly follows another kernel.
TEST_P(EarlyStart, ValuesReadBeforeTheWaitAreOld) {
  for (const auto& [mode, behind_kernel] : {std::pair("1", true), {"1", false}, {"0", true}}) {
    const Environment setting("SHOAL_EMULATED_EARLY", mode);
    const CudaArray<int> x(std::vector<int>(kBlocks, 0));
    run([&, behind_kernel = behind_kernel] {
      queue(add_one, x.data());
      if (!behind_kernel) {
        EXPECT_EQ(cudaMemsetAsync(z_.data(), 0, sizeof(int), stream_), cudaSuccess);
      }
      queue_early(copy_too_early, x.data(), y_.data());
    });
    EXPECT_EQ(y_.get(), *mode == '1' && behind_kernel ? kEarly : std::vector<int>(kBlocks, 1)) << mode << behind_kernel;
  }
}

TEST_P(EarlyStart, ValuesReadAfterTheWaitAreNew) {
  run([this] {
    queue(add_one, x_.data());
    queue_early(copy, x_.data(), y_.data());
    launch_early(stream_, copy_after_wait_of_one, dim3(kBlocks), dim3(32), 0, y_.data(), z_.data());
  });
  EXPECT_THAT(z_.get(), Each(1));
}

TEST_P(EarlyStart, ThreeKernelsMayBeginBeforeTheirPredecessorsEnd) {
  const CudaArray<int> w(std::vector<int>(kBlocks, -1));
  run([&] {
    queue(add_one, x_.data());
    queue_early(copy, x_.data(), y_.data());
    queue_early(copy, y_.data(), w.data());
    queue_early(copy_too_early, x_.data(), z_.data());
    queue_early(add_one, x_.data());
  });
  EXPECT_THAT(w.get(), Each(1));
  EXPECT_EQ(z_.get(), kEarly) << "the fourth kernel begins before the first one runs";
  EXPECT_THAT(x_.get(), Each(2));
}

TEST_P(EarlyStart, ValuesWrittenBeforeTheWaitReachAnEarlierKernel) {
  run([this] {
    queue(add_one, x_.data());
    queue(copy, x_.data(), y_.data());
    queue_early(add_one, z_.data());
    queue_early(add_one, z_.data());
    queue_early(clear_too_early, x_.data());
  });
  EXPECT_EQ(y_.get(), kEarly);
}

/// This kernel behaves like a collective that waits for another rank.
__global__ void wait_for_word(const uint32_t* word, bool lets_next_start, uint32_t* runs) {
  if (lets_next_start) let_next_start();
  store_release(runs, 1);
  while (load_acquire(word) == 0) spin_pause();
}

struct EarlyStartWithResidency : testing::Test {
  /// Queues a kernel that waits for a word, and then calls `behind`, which queues more work. The stream runs the kernel
  /// and this work only after everything is queued. Calls `meanwhile` while the kernel waits, and sets the word when
  /// `meanwhile` returns.
  void run(bool lets_next_start, const std::function<void()>& behind, const std::function<void()>& meanwhile) {
    PinnedWord ready, runs, go;
    launch(stream_, hold_back, dim3(1), dim3(512), 0, static_cast<const uint32_t*>(ready.get()));
    launch(stream_, wait_for_word, dim3(1), dim3(512), 0, static_cast<const uint32_t*>(go.get()), lets_next_start,
           runs.get());
    behind();
    ready.set();
    wait_until([&] { return runs.value() == 1; });
    meanwhile();
    go.set();
    stream_.synchronize();
    EXPECT_EQ(resident_blocks(0), 0);
  }
  void add_early(int blocks) {
    launch_early(stream_, add_one, dim3(static_cast<unsigned>(blocks)), dim3(512), 0, x_.data());
  }

  const Environment modes_{
      {"SHOAL_EMULATED_EARLY", "1"}, {"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_PROCESSORS", "4"}};
  const CudaStream stream_;
  const CudaArray<int> x_{std::vector<int>(kBlocks, 0)};
};

TEST_F(EarlyStartWithResidency, EarlyBlocksOccupyFreeMultiprocessors) {
  const auto behind = [this] { add_early(kBlocks); };
  run(true, behind, [] { wait_until([] { return resident_blocks(0) == 4; }); });
  run(false, behind, [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(resident_blocks(0), 1) << "the next kernel must wait until all blocks have ended";
  });
}

TEST_F(EarlyStartWithResidency, ChainOfEarlyKernelsFillsTheGpu) {
  const auto behind = [this] { add_early(1), add_early(kBlocks); };
  run(true, behind, [] { wait_until([] { return resident_blocks(0) == 4; }); });
  EXPECT_THAT(x_.get(), ElementsAre(2, 1, 1, 1, 1, 1));
}

TEST(EarlyStartAttributes, EarlyKernelsSetTheLargestSharedMemoryCarveout) {
  const CudaStream stream;
  const CudaArray<int> x(std::vector<int>{0});
  const PinnedWord go;
  launch(stream, wait_for_word, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(go.get()), true, go.get());
  launch_early(stream, add_one, dim3(1), dim3(1), 0, x.data());
  stream.synchronize();
  cudaFuncAttributes early, late;
  ASSERT_EQ(cudaFuncGetAttributes(&early, reinterpret_cast<const void*>(add_one)), cudaSuccess);
  ASSERT_EQ(cudaFuncGetAttributes(&late, reinterpret_cast<const void*>(wait_for_word)), cudaSuccess);
  EXPECT_EQ(early.preferredShmemCarveout, 100)
      << "so that blocks with much shared memory fit on the same multiprocessor";
  EXPECT_EQ(late.preferredShmemCarveout, -1);
}

TEST(EarlyStartDeathTest, EarlyKernelMustWaitForPreviousWork) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto run = [] {
    const CudaStream stream;
    launch_early(stream, never_wait, dim3(2), dim3(32), 0);
    stream.synchronize();
  };
  EXPECT_DEATH(run(), "launched early at .*emulator_early_test.cpp:[0-9]+ .*none of its threads calls wait_for_prev");
}

}  // namespace
}  // namespace shoal::cuda
