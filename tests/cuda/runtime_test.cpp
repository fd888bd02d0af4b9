// The emulated CUDA runtime: order and waits in streams, memory, errors, and captures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/pinned_word.h"
#include "tests/support/environment.h"

namespace shoal::cuda {
namespace {

using emulator::resident_blocks;
using shoal::test::CudaArray;
using shoal::test::CudaStream;
using shoal::test::Environment;
using shoal::test::PinnedWord;
using shoal::test::wait_until;
using testing::ElementsAre;

__global__ void wait_for_word(const uint32_t* word) {
  while (load_acquire(word) == 0) spin_pause();
}

/// Blocks a stream until the gate is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) : stream_(stream) {
    launch(stream, wait_for_word, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(word_.get()));
  }
  ~Gate() {
    open();
    cudaStreamSynchronize(stream_);
  }
  void open() { word_.set(); }

 private:
  cudaStream_t stream_;
  PinnedWord word_;
};

__global__ void add(int* values, int addend) {
  values[threadIdx.x] += addend;
}
TEST(CudaRuntime, StreamsRunInOrderWithoutBlockingTheHost) {
  const CudaStream stream;
  const CudaArray<int> values(std::vector<int>{1, 2});
  std::vector<int> in{10, 20}, out{0, 0};
  Gate gate(stream);
  ASSERT_EQ(cudaMemcpyAsync(values.data(), in.data(), 8, cudaMemcpyHostToDevice, stream), cudaSuccess);
  launch(stream, add, dim3(1), dim3(2), 0, values.data(), 5);
  ASSERT_EQ(cudaMemcpyAsync(out.data(), values.data(), 8, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady) << "CUDA also keeps this status as the last error";
  EXPECT_EQ(out[0], 0);
  in = {30, 40};  // the pending copy must see these values
  gate.open();
  stream.synchronize();
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_THAT(out, ElementsAre(35, 45));
}

TEST(CudaRuntime, DefaultStreamWaitsForABlockingStream) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault), cudaSuccess);
  const CudaArray<int> value(std::vector<int>{1});
  Gate gate(blocking);
  launch(blocking, add, dim3(1), dim3(1), 0, value.data(), 5);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    gate.open();
  });
  EXPECT_EQ(value.get()[0], 6);
  opener.join();
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST(CudaRuntime, MemoryIsLimitedAndCounted) {
  const Environment memory("SHOAL_EMULATED_MEMORY", "1000000");
  cudaMemPool_t pool = nullptr;  // the pool may still hold memory of earlier tests
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  ASSERT_EQ(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
  size_t free = 0, total = 0, before = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  EXPECT_EQ(total, 1'000'000u);
  void *first = nullptr, *second = nullptr;
  const CudaStream stream;
  Gate gate(stream);
  ASSERT_EQ(cudaMallocAsync(&first, 600'000, stream), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(first, stream), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(before - free, 600'000u) << "memory stays allocated until the stream frees it";
  gate.open();
  ASSERT_EQ(cudaMallocAsync(&second, 600'000, stream), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&first, 600'000), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(static_cast<char*>(second) + 8), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(second), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeAsync(second, stream), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(CudaRuntime, RefusesInvalidCopies) {
  const CudaStream stream;
  const CudaArray<char> values(std::vector<char>(100, 'a'));
  std::vector<char> host(200);
  const auto copy = [&](void* to, const void* from, size_t size, cudaMemcpyKind kind) {
    const cudaError_t status = cudaMemcpyAsync(to, from, size, kind, stream);
    cudaGetLastError();
    return status;
  };
  EXPECT_EQ(copy(host.data(), values.data(), 100, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(copy(host.data(), values.data(), 100, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(copy(host.data(), values.data(), 101, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), values.data() + 1, 100, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), values.data(), 100, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), host.data() + 100, 100, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), nullptr, 0, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 1, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy2DAsync(host.data(), 10, values.data(), 5, 6, 3, cudaMemcpyDeviceToHost, stream),
            cudaErrorInvalidPitchValue);
  cudaGetLastError();
  stream.synchronize();
}

TEST(CudaRuntime, RefusesInvalidLaunches) {
  const CudaStream stream;
  const CudaArray<int> value(std::vector<int>{1});
  const auto error_of = [&](dim3 grid, dim3 block, size_t shared) {
    launch(stream, add, grid, block, shared, value.data(), 0);
    return cudaGetLastError();
  };
  EXPECT_EQ(error_of(1, 1, 0), cudaSuccess);
  EXPECT_EQ(error_of(0, 1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(dim3(1, 65536), 1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 1, 227 * 1024), cudaSuccess);
  EXPECT_NE(error_of(1, 1, 227 * 1024 + 1), cudaSuccess);
  cudaFuncAttributes attributes{};
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&add)), cudaSuccess);
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 227 * 1024) << "the largest size of the launches above";
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, nullptr), cudaErrorInvalidDeviceFunction);
  cudaGetLastError();
}

TEST(Residency, BlocksWaitForFreeMultiprocessors) {
  const Environment modes{{"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_PROCESSORS", "2"}};
  PinnedWord go, done;
  const CudaStream waiting, other;
  launch(waiting, wait_for_word, dim3(3), dim3(512), 0, static_cast<const uint32_t*>(go.get()));
  wait_until([] { return resident_blocks(0) == 2; });
  launch(other, add, dim3(1), dim3(1), 0, reinterpret_cast<int*>(done.get()), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(resident_blocks(0), 2) << "two blocks occupy all registers of both multiprocessors";
  EXPECT_EQ(*done.get(), 0u);
  go.set();
  other.synchronize();
  waiting.synchronize();
  EXPECT_EQ(*done.get(), 1u);
  EXPECT_EQ(resident_blocks(0), 0);
}

/// Captures the work that `work` queues on the stream; returns nullptr if the capture fails.
template <class Work>
cudaGraph_t capture(cudaStream_t stream, Work work) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  work();
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  return graph;
}

TEST(CudaCapture, GraphRunsTheCapturedWork) {
  const CudaStream stream;
  const CudaArray<int> value(std::vector<int>{1});
  const auto adding = [&](int addend, int times) {
    return capture(stream, [&] {
      for (int i = 0; i < times; ++i) launch(stream, add, dim3(1), dim3(1), 0, value.data(), addend);
    });
  };
  const cudaGraph_t first = adding(2, 2), other = adding(-5, 2), longer = adding(1, 3);
  const cudaGraph_t changed = capture(stream, [&] {
    launch(stream, add, dim3(1), dim3(1), 0, value.data(), 1);
    ASSERT_EQ(cudaMemsetAsync(value.data(), 0, 4, stream), cudaSuccess);
  });
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, first, 0), cudaSuccess);
  EXPECT_EQ(value.get()[0], 1) << "nothing may run during a capture";
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  stream.synchronize();
  EXPECT_EQ(value.get()[0], 1 + 2 * 2 * 2);
  cudaGraphExecUpdateResultInfo info{};
  EXPECT_EQ(cudaGraphExecUpdate(exec, other, &info), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  stream.synchronize();
  EXPECT_EQ(value.get()[0], 9 - 10);
  EXPECT_EQ(cudaGraphExecUpdate(exec, longer, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(cudaGraphExecUpdate(exec, changed, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorNodeTypeChanged);
  for (const cudaGraph_t graph : {first, other, longer, changed}) EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(CudaCapture, UnsupportedCallsInvalidateTheCapture) {
  const CudaStream stream;
  const CudaArray<int> value(std::vector<int>{1});
  int pageable = 0;
  void* memory = nullptr;
  const auto refused = [&](auto call) {
    cudaError_t status = cudaSuccess;
    EXPECT_EQ(capture(stream, [&] { status = call(); }), nullptr);
    EXPECT_EQ(status, cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
  };
  refused([&] { return cudaStreamSynchronize(stream); });
  refused([&] { return cudaMalloc(&memory, 4); });
  refused([&] { return cudaMemcpy(&pageable, value.data(), 4, cudaMemcpyDeviceToHost); });
  const cudaGraph_t graph = capture(stream, [&] {
    EXPECT_EQ(cudaMemcpyAsync(&pageable, value.data(), 4, cudaMemcpyDeviceToHost, stream),
              cudaErrorStreamCaptureUnsupported);
    std::thread([] { const CudaArray<int> of_another_thread(size_t{1}); }).join();
    launch(stream, add, dim3(1), dim3(1), 0, value.data(), 1);
  });
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  cudaGetLastError();
}

}  // namespace
}  // namespace shoal::cuda
