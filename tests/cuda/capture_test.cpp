// The stand-in for the CUDA runtime: captured streams, graphs, and flags that the driver waits for. On a GPU branches
// of a graph need not run at the same time, and errors may have other names.
#include <cuda.h>
#include <gtest/gtest.h>

#include <thread>

#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/device_memory.h"

namespace shoal::cuda {
namespace {

using shoal::test::CudaArray;
using shoal::test::CudaStream;

__global__ void add(int* value, int addend) {
  *value += addend;
}
__global__ void times(int* value, int factor) {
  *value *= factor;
}

/// Sets its own flag and waits for that of the other: ends only if both run at the same time.
__global__ void meet(uint32_t* own, const uint32_t* other) {
  store_release(own, load_acquire(own) + 1);
  while (load_acquire(other) < load_acquire(own)) spin_pause();
}

/// What `work` queues on the stream, as a graph; nullptr when it could not be captured.
template <class Work>
cudaGraph_t capture(cudaStream_t stream, Work work) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  work();
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  return graph;
}

cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return exec;
}

TEST(CudaCapture, AGraphRunsWhatWasCaptured) {
  const CudaStream stream;
  const CudaArray<int> value(std::vector<int>{1});
  const auto work = [&](int addend, int factor) {
    return [&, addend, factor] {
      launch(stream, add, dim3(1), dim3(1), 0, value.data(), addend);
      launch(stream, times, dim3(1), dim3(1), 0, value.data(), factor);
    };
  };
  const cudaGraphExec_t exec = instantiate(capture(stream, work(2, 10)));
  EXPECT_EQ(value.get()[0], 1) << "nothing runs while it is captured";
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  stream.synchronize();
  EXPECT_EQ(value.get()[0], ((1 + 2) * 10 + 2) * 10);

  cudaGraphExecUpdateResultInfo info{};
  const cudaGraph_t other = capture(stream, work(-320, 3));
  EXPECT_EQ(cudaGraphExecUpdate(exec, other, &info), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  stream.synchronize();
  EXPECT_EQ(value.get()[0], 0);

  const cudaGraph_t longer = capture(stream, [&] {
    work(1, 1)();
    ASSERT_EQ(cudaMemsetAsync(value.data(), 0, 4, stream), cudaSuccess);
  });
  EXPECT_EQ(cudaGraphExecUpdate(exec, longer, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorTopologyChanged);
  const cudaGraph_t changed = capture(stream, [&] {
    launch(stream, add, dim3(1), dim3(1), 0, value.data(), 1);
    ASSERT_EQ(cudaMemsetAsync(value.data(), 0, 4, stream), cudaSuccess);
  });
  EXPECT_EQ(cudaGraphExecUpdate(exec, changed, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(info.result, cudaGraphExecUpdateErrorNodeTypeChanged);
  for (const cudaGraph_t graph : {other, longer, changed}) EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST(CudaCapture, BranchesRunAtTheSameTime) {
  const CudaStream stream, branch;
  const CudaArray<uint32_t> flags(std::vector<uint32_t>{0, 0});
  const CudaArray<int> value(std::vector<int>{1});
  cudaEvent_t fork = nullptr, join = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&join, cudaEventDisableTiming), cudaSuccess);
  const auto work = [&] {
    const uint32_t* const first = flags.data();
    const uint32_t* const second = flags.data() + 1;
    launch(stream, add, dim3(1), dim3(1), 0, value.data(), 1);
    ASSERT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(branch, fork, 0), cudaSuccess);
    launch(branch, times, dim3(1), dim3(1), 0, value.data(), 3);
    launch(branch, meet, dim3(1), dim3(1), 0, flags.data() + 1, first);
    launch(stream, meet, dim3(1), dim3(1), 0, flags.data(), second);
    ASSERT_EQ(cudaEventRecord(join, branch), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(join), cudaErrorCapturedEvent);
    ASSERT_EQ(cudaStreamWaitEvent(stream, join, 0), cudaSuccess);
    launch(stream, add, dim3(1), dim3(1), 0, value.data(), 100);
  };
  const cudaGraphExec_t exec = instantiate(capture(stream, work));
  cudaGetLastError();
  for (int i = 0; i < 5; ++i) ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  stream.synchronize();
  int expected = 1;
  for (int i = 0; i < 5; ++i) expected = (expected + 1) * 3 + 100;
  EXPECT_EQ(value.get()[0], expected);

  EXPECT_EQ(capture(stream,
                    [&] {
                      ASSERT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
                      ASSERT_EQ(cudaStreamWaitEvent(branch, fork, 0), cudaSuccess);
                      launch(branch, times, dim3(1), dim3(1), 0, value.data(), 3);
                    }),
            nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(cudaStreamSynchronize(branch), cudaSuccess) << "is free again";
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(fork), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(join), cudaSuccess);
}

TEST(CudaCapture, WhatCannotBeCapturedSpoilsIt) {
  const CudaStream stream, outside;
  const CudaArray<int> value(std::vector<int>{1});
  int pageable = 0;
  void* memory = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, outside), cudaSuccess);
  const auto refused = [&](auto call, cudaError_t expected) {
    cudaError_t status = cudaSuccess;
    const cudaGraph_t graph = capture(stream, [&] { status = call(); });
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status, expected);
    EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
  };
  refused([&] { return cudaStreamSynchronize(stream); }, cudaErrorStreamCaptureUnsupported);
  refused([&] { return cudaMalloc(&memory, 4); }, cudaErrorStreamCaptureUnsupported);
  refused([&] { return cudaMemcpy(&pageable, value.data(), 4, cudaMemcpyDeviceToHost); },
          cudaErrorStreamCaptureUnsupported);
  refused([&] { return cudaStreamWaitEvent(stream, event, 0); }, cudaErrorStreamCaptureIsolation);

  const cudaGraph_t graph = capture(stream, [&] {
    EXPECT_EQ(cudaMemcpyAsync(&pageable, value.data(), 4, cudaMemcpyDeviceToHost, stream),
              cudaErrorStreamCaptureUnsupported);
    // Another thread is not concerned.
    std::thread([&] {
      EXPECT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
    }).join();
    launch(stream, add, dim3(1), dim3(1), 0, value.data(), 1);
  });
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  cudaGetLastError();
}

TEST(CudaCapture, ExternalEventsAreRecordedAndWaitedForWhenTheGraphRuns) {
  const CudaStream stream, other, third;
  const CudaArray<int> value(std::vector<int>{1});
  const CudaArray<uint32_t> flags(std::vector<uint32_t>{1, 1});
  cudaEvent_t before = nullptr, after = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&before, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&after, cudaEventDisableTiming), cudaSuccess);
  const cudaGraphExec_t exec = instantiate(capture(stream, [&] {
    ASSERT_EQ(cudaStreamWaitEvent(stream, before, cudaEventWaitExternal), cudaSuccess);
    launch(stream, times, dim3(1), dim3(1), 0, value.data(), 3);
    ASSERT_EQ(cudaEventRecordWithFlags(after, stream, cudaEventRecordExternal), cudaSuccess);
  }));
  const uint32_t *const first = flags.data(), *const second = first + 1;
  launch(other, meet, dim3(1), dim3(1), 0, flags.data() + 1, first);  // until that is 2
  launch(other, add, dim3(1), dim3(1), 0, value.data(), 4);
  ASSERT_EQ(cudaEventRecord(before, other), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  cudaGetLastError();
  launch(third, meet, dim3(1), dim3(1), 0, flags.data(), second);
  stream.synchronize();
  EXPECT_EQ(cudaEventQuery(after), cudaSuccess);
  EXPECT_EQ(value.get()[0], (1 + 4) * 3);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(before), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(after), cudaSuccess);
}

TEST(CudaCapture, TheDriverWaitsForFlags) {
  using Operation = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  Operation wait = nullptr, write = nullptr;
  void* unknown = nullptr;
  cudaDriverEntryPointQueryResult found{};
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", reinterpret_cast<void**>(&wait), 12000,
                                             cudaEnableDefault, &found),
            cudaSuccess);
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", reinterpret_cast<void**>(&write), 12000,
                                             cudaEnableDefault, &found),
            cudaSuccess);
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuNothing", &unknown, 12000, cudaEnableDefault, &found), cudaSuccess);
  EXPECT_EQ(found, cudaDriverEntryPointSymbolNotFound);

  const CudaStream first, second;
  const CudaArray<uint32_t> flag(std::vector<uint32_t>{0});
  const CudaArray<int> value(std::vector<int>{1});
  const auto address = reinterpret_cast<CUdeviceptr>(flag.data());
  const cudaGraphExec_t exec = instantiate(capture(second, [&] {
    EXPECT_EQ(wait(second, address, 3, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
    launch(second, times, dim3(1), dim3(1), 0, value.data(), 3);
  }));
  ASSERT_EQ(cudaGraphLaunch(exec, second), cudaSuccess);
  EXPECT_EQ(write(first, address, 2, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_SUCCESS);
  launch(first, add, dim3(1), dim3(1), 0, value.data(), 4);
  first.synchronize();
  EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady) << "2 is not enough";
  cudaGetLastError();
  EXPECT_EQ(write(first, address, 3, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_SUCCESS);
  second.synchronize();
  EXPECT_EQ(value.get()[0], 15);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

}  // namespace
}  // namespace shoal::cuda
