// The stand-in for the CUDA runtime: order and waiting in streams, memory, errors, faults on demand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/support/environment.h"

namespace shoal::cuda {
namespace {

using shoal::test::CudaArray;
using shoal::test::CudaStream;
using shoal::test::Environment;
using testing::ElementsAre;

/// Holds a stream back until it is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream, [](void* gate) { static_cast<Gate*>(gate)->open_.wait(false); }, this),
              cudaSuccess);
  }
  ~Gate() { open(); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

__global__ void add(int* values, int addend) {
  values[threadIdx.x] += addend;
}
__global__ void copy_value(const int* from, int* to) {
  *to = *from;
}

TEST(CudaRuntime, StreamsRunInOrderAndTheHostGoesOn) {
  const CudaStream stream;
  const CudaArray<int> values(std::vector<int>{1, 2});
  std::vector<int> in{10, 20}, out{0, 0};
  Gate gate(stream);
  ASSERT_EQ(cudaMemcpyAsync(values.data(), in.data(), 8, cudaMemcpyHostToDevice, stream), cudaSuccess);
  launch(stream, add, dim3(1), dim3(2), 0, values.data(), 5);
  ASSERT_EQ(cudaMemcpyAsync(out.data(), values.data(), 8, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady) << "is kept as if it were an error";
  EXPECT_EQ(out[0], 0);
  in = {30, 40};  // too early: the copy has not happened yet
  gate.open();
  stream.synchronize();
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_THAT(out, ElementsAre(35, 45));
}

TEST(CudaRuntime, EventsOrderStreams) {
  const CudaStream first, second;
  const CudaArray<int> value(std::vector<int>{1}), copy(std::vector<int>{0});
  cudaEvent_t event = nullptr, later = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&later, cudaEventDefault), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "never recorded";
  Gate gate(first);
  launch(first, add, dim3(1), dim3(1), 0, value.data(), 5);
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  launch(second, copy_value, dim3(1), dim3(1), 0, static_cast<const int*>(value.data()), copy.data());
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  gate.open();
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(later, second), cudaSuccess);
  second.synchronize();
  EXPECT_EQ(copy.get()[0], 6);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, later), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(later), cudaSuccess);
  cudaGetLastError();
}

TEST(CudaRuntime, TheDefaultStreamWaitsForBlockingOnes) {
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
  size_t free = 0, total = 0, before = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  EXPECT_EQ(total, 1'000'000u);
  void *first = nullptr, *second = nullptr;
  ASSERT_EQ(cudaMalloc(&first, 600'000), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 600'000), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(before - free, 600'000u);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaErrorInvalidValue);

  const CudaStream stream;
  Gate gate(stream);
  ASSERT_EQ(cudaMallocAsync(&first, 600'000, stream), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(first, stream), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(before - free, 600'000u) << "until the stream comes to it";
  gate.open();
  ASSERT_EQ(cudaMallocAsync(&second, 600'000, stream), cudaSuccess);
  EXPECT_EQ(cudaFree(static_cast<char*>(second) + 8), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(second), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeAsync(second, stream), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(CudaRuntime, CopiesAreChecked) {
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
  EXPECT_EQ(cudaMemcpy2D(host.data(), 10, values.data(), 5, 6, 3, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemcpy2D(host.data(), 10, values.data(), 50, 6, 3, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  cudaGetLastError();
  stream.synchronize();

  ASSERT_EQ(cudaMemset2D(values.data() + 1, 10, 'b', 3, 10), cudaSuccess);
  ASSERT_EQ(cudaMemcpy2D(host.data(), 4, values.data(), 10, 4, 10, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(std::string(host.data(), 12), "abbbabbbabbb");
}

TEST(CudaRuntime, PinnedMemoryIsSeenFromBothSides) {
  const CudaStream stream;
  int *pinned = nullptr, *device = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 64, cudaHostAllocPortable), cudaSuccess);
  ASSERT_EQ(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device), pinned, 0), cudaSuccess);
  *pinned = 4;
  launch(stream, add, dim3(1), dim3(1), 0, device, 3);
  stream.synchronize();
  EXPECT_EQ(*pinned, 7);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);

  std::vector<int> own(16, 1);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaHostRegister(own.data(), 64, 0), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(own.data() + 4, 4, 0), cudaErrorHostMemoryAlreadyRegistered);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, own.data() + 3), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
  cudaGetLastError();
}

TEST(CudaRuntime, GpusAndPeers) {
  const Environment gpus("SHOAL_EMULATED_GPUS", "2"), lies("SHOAL_EMULATED_LYING_PEERS", "0>1");
  int count = 0, can = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  cudaDeviceDisablePeerAccess(1);  // what tests before in this process have enabled
  cudaGetLastError();
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  char id[32] = {};
  EXPECT_EQ(cudaDeviceGetPCIBusId(id, sizeof(id), 1), cudaSuccess);
  EXPECT_STREQ(id, "0000:02:00.0");

  const CudaArray<int> first(std::vector<int>{1, 2, 3});
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  {
    const CudaArray<int> second(size_t{3});
    ASSERT_EQ(cudaMemcpyPeer(second.data(), 1, first.data(), 0, 12), cudaSuccess);
    EXPECT_NE(second.get(), first.get()) << "0>1 lies";
    const std::vector<int> there = second.get();
    ASSERT_EQ(cudaMemcpyPeer(first.data(), 0, second.data(), 1, 12), cudaSuccess);
    EXPECT_EQ(first.get(), there) << "1>0 does not";
    cudaDeviceDisablePeerAccess(0);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaSuccess);
    cudaGetLastError();
    ASSERT_EQ(cudaMemcpyPeer(second.data(), 1, first.data(), 0, 12), cudaSuccess);
    EXPECT_EQ(second.get(), there) << "through the host";
  }
  {
    const Environment without("SHOAL_EMULATED_PEERS", "0");
    EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
    EXPECT_EQ(can, 0);
    EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
  }
  const Environment none("SHOAL_EMULATED_GPUS", "0");
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  cudaGetLastError();
}

TEST(CudaRuntime, LaunchesAreChecked) {
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
  int blocks = 0;
  EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<const void*>(&add), 256, 100'000),
            cudaSuccess);
  EXPECT_EQ(blocks, 2);
  cudaFuncAttributes attributes{};
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&add)), cudaSuccess);
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 227 * 1024) << "what the launches above asked for";
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, nullptr), cudaErrorInvalidDeviceFunction);
}

TEST(CudaRuntime, CallsFailWhenAskedToAndAreWrittenDown) {
  emulator::fail_call("cudaStreamSynchronize", 2, cudaErrorIllegalAddress);
  emulator::fail_call("cudaLaunchKernel", 1, cudaErrorLaunchFailure);
  emulator::record_calls();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  launch(stream, add, dim3(1), dim3(1), 0, static_cast<int*>(nullptr), 1);  // would crash if it ran
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_THAT(emulator::take_calls(),
              ElementsAre("cudaStreamCreateWithFlags", "cudaLaunchKernel", "cudaStreamSynchronize",
                          "cudaStreamSynchronize", "cudaStreamSynchronize", "cudaStreamDestroy", "cudaStreamDestroy"));
  emulator::clear_faults();
  cudaGetLastError();
}

TEST(CudaRuntime, HostFunctionsMayNotCallCuda) {
  const CudaStream stream;
  cudaError_t status = cudaSuccess;
  ASSERT_EQ(cudaLaunchHostFunc(
                stream, [](void* into) { *static_cast<cudaError_t*>(into) = cudaStreamSynchronize(nullptr); }, &status),
            cudaSuccess);
  stream.synchronize();
  EXPECT_EQ(status, cudaErrorNotPermitted);
}

}  // namespace
}  // namespace shoal::cuda
