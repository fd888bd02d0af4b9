// Kernels in different streams of one GPU must run concurrently. Otherwise, collectives between virtual devices hang: a
// kernel waits for another kernel that the GPU does not start before the first kernel ends. This test is small and
// independent of the library, so it can be the first program to run on a GPU (scripts/gpu_check, step streams). Every
// kernel has a time limit.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "devices/cuda/driver_environment.h"
#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/device_memory.h"

namespace shoal::cuda {
namespace {

using test::CudaArray;
using test::CudaStream;
using Streams = std::vector<cudaStream_t>;

const bool g_environment_is_set = (set_driver_environment(), true);

constexpr int kMostStreams = 16;
constexpr uint64_t kSecond = 1'000'000'000;
#ifdef SHOAL_CUDA_EMULATED
constexpr uint64_t kPatience = 100 * kSecond;  // time limit in ns; it is long enough for a busy machine
#else
constexpr uint64_t kPatience = kSecond / 20;
#endif

/// Kernel number `own` of `all` kernels sets its flag and waits for the flags of all kernels. Then it stores the number
/// of flags that it has seen.
__global__ void wait_for_all(uint32_t* flags, int own, int all, uint32_t* seen, uint64_t patience) {
  const uint64_t end = now_ns() + patience;
  store_release(&flags[own], 1);
  uint32_t count = 0;
  while (now_ns() < end) {
    count = 0;
    for (int i = 0; i < all; ++i) count += load_acquire(&flags[i]);
    if (count == static_cast<uint32_t>(all)) break;
    spin_pause();
  }
  seen[own] = count;
}

cudaGraphExec_t captured(cudaStream_t stream, uint32_t* flags, int own, int all, uint32_t* seen, uint64_t patience) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  launch(stream, wait_for_all, dim3(1), dim3(1), 0, flags, own, all, seen, patience);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphUpload(exec, stream), cudaSuccess);
  return exec;
}

/// Launches one kernel in each stream and returns the number of kernels that ran concurrently.
uint32_t ran_at_once(const Streams& streams, bool as_graphs, uint64_t patience = kPatience) {
  const int all = static_cast<int>(streams.size());
  const CudaArray<uint32_t> flags(std::vector<uint32_t>(streams.size(), 0)),
      seen(std::vector<uint32_t>(streams.size(), 0));
  std::vector<cudaGraphExec_t> graphs;
  for (int i = 0; as_graphs && i < all; ++i) {
    graphs.push_back(captured(streams[i], flags.data(), i, all, seen.data(), patience));
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int i = 0; i < all; ++i) {
    if (as_graphs) {
      EXPECT_EQ(cudaGraphLaunch(graphs[i], streams[i]), cudaSuccess);
    } else {
      launch(streams[i], wait_for_all, dim3(1), dim3(1), 0, flags.data(), i, all, seen.data(), patience);
    }
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  for (cudaGraphExec_t graph : graphs) EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  const std::vector<uint32_t> found = seen.get();
  return *std::min_element(found.begin(), found.end());
}

/// Tests 2 to 16 streams. For each tested stream, the function also creates `made` - 1 streams that stay idle.
void expect_all_at_once(const char* name, bool as_graphs, int made) {
  const CudaStream first;
  ran_at_once({first}, as_graphs);  // loads the kernel
  for (int n = 2; n <= kMostStreams; ++n) {
    std::vector<CudaStream> owned(static_cast<size_t>(n * made));
    Streams streams;
    for (int i = 0; i < n; ++i) streams.push_back(owned[static_cast<size_t>(i * made)]);
    const uint32_t found = ran_at_once(streams, as_graphs);
    std::printf("at once: %s %u of %d\n", name, found, n);
    EXPECT_EQ(found, static_cast<uint32_t>(n));
  }
}

TEST(SpinningStreams, RunConcurrently) {
  expect_all_at_once("launches", false, 1);
}
TEST(SpinningStreams, RunConcurrentlyAsGraphs) {
  expect_all_at_once("graphs", true, 1);
}
/// A rank of a staged mesh also has idle streams.
TEST(SpinningStreams, RunConcurrentlyNextToIdleStreams) {
  expect_all_at_once("launches beside idle streams", false, 3);
}

/// Checks that the tests detect kernels that do not run concurrently. In this test, both kernels are in one stream.
TEST(SpinningStreams, KernelsOfOneStreamDoNotRunConcurrently) {
  const CudaStream stream;
  for (const bool as_graphs : {false, true}) EXPECT_EQ(ran_at_once({stream, stream}, as_graphs, kSecond / 50), 1u);
}

}  // namespace
}  // namespace shoal::cuda
