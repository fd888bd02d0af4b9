// The emulator's modes for what hangs on GPUs: room for blocks, queues of streams, and calls that keep others from
// launching.
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/pinned_word.h"

namespace shoal::cuda {
namespace {

using emulator::blocks_without_room;
using emulator::driver_is_locked;
using emulator::resident_blocks;
using emulator::waiting_for_driver;
using test::CudaStream;
using test::Environment;
using test::PinnedWord;
using test::wait_until;

__global__ void wait_for_word(const uint32_t* word) {
  while (load_acquire(word) == 0) spin_pause();
}
__global__ void set_word(uint32_t* word) {
  if (threadIdx.x == 0) store_release(word, 1);
}

TEST(Residency, BlocksWaitForRoom) {
  const Environment modes{{"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_PROCESSORS", "2"}};
  PinnedWord go, done;
  const CudaStream waiting, other;
  launch(waiting, wait_for_word, dim3(3), dim3(512), 0, static_cast<const uint32_t*>(go.get()));
  wait_until([] { return resident_blocks(0) == 2; });
  launch(other, set_word, dim3(1), dim3(32), 0, done.get());
  wait_until([] { return blocks_without_room(0) == 2; });
  EXPECT_EQ(resident_blocks(0), 2) << "they have all registers of both multiprocessors";
  EXPECT_EQ(*done.get(), 0u);
  go.set();
  other.synchronize();
  waiting.synchronize();
  EXPECT_EQ(*done.get(), 1u);
  EXPECT_EQ(resident_blocks(0), 0);
}

TEST(Residency, RegistersOfAKernelCount) {
  const Environment modes{{"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_PROCESSORS", "1"}};
  const auto* const kernel = reinterpret_cast<const void*>(wait_for_word);
  const auto blocks = [kernel](int block, size_t shared_bytes) {
    int found = 0;
    EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, block, shared_bytes), cudaSuccess);
    return found;
  };
  EXPECT_EQ(blocks(512, 0), 1) << "128 registers, as far as is known";
  EXPECT_EQ(blocks(64, 0), 4) << "255";
  emulator::set_registers(kernel, 60);  // of which there are 64
  EXPECT_EQ(blocks(512, 0), 2);
  EXPECT_EQ(blocks(512, 150'000), 1);
  EXPECT_EQ(blocks(64, 0), 16);
  PinnedWord go;
  const CudaStream stream;
  launch(stream, wait_for_word, dim3(3), dim3(512), 0, static_cast<const uint32_t*>(go.get()));
  wait_until([] { return resident_blocks(0) == 2; });
  go.set();
  stream.synchronize();
  emulator::set_registers(kernel, 0);
  EXPECT_EQ(blocks(512, 0), 1);
}

TEST(DriverLock, NothingIsLaunchedWhileACallWaitsForTheGpu) {
  const Environment mode("SHOAL_EMULATED_DRIVER_LOCK", "1");
  PinnedWord go, done;
  const CudaStream waiting, other;
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  launch(waiting, wait_for_word, dim3(1), dim3(32), 0, static_cast<const uint32_t*>(go.get()));
  std::thread frees([&] { EXPECT_EQ(cudaFree(memory), cudaSuccess); });
  wait_until([] { return driver_is_locked(0); });
  std::thread launches([&] { launch(other, set_word, dim3(1), dim3(32), 0, done.get()); });
  wait_until([] { return waiting_for_driver(0) == 1; });
  EXPECT_EQ(*done.get(), 0u);
  go.set();
  frees.join();
  launches.join();
  other.synchronize();
  EXPECT_EQ(*done.get(), 1u);
}

/// Waits for the word for as long as `patience`; has it come?
__global__ void look_for_word(const uint32_t* word, uint64_t patience, uint32_t* found) {
  const uint64_t end = now_ns() + patience;
  while (load_acquire(word) == 0 && now_ns() < end) spin_pause();
  *found = load_acquire(word);
}
__global__ void nothing() {}

constexpr uint64_t kLong = 100'000'000'000, kShort = 100'000'000;  // ns

/// Two streams, each with a kernel and another one behind it: does the first stream's see that of the second?
uint32_t second_stream_is_seen(const char* queues, uint64_t patience) {
  const Environment modes{{"SHOAL_EMULATED_QUEUES", "1"}, {"CUDA_DEVICE_MAX_CONNECTIONS", queues}};
  const CudaStream first, second;
  PinnedWord word, found;
  launch(first, look_for_word, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(word.get()), patience, found.get());
  launch(first, nothing, dim3(1), dim3(1), 0);
  launch(second, set_word, dim3(1), dim3(1), 0, word.get());
  launch(second, nothing, dim3(1), dim3(1), 0);
  first.synchronize();
  second.synchronize();
  EXPECT_EQ(word.value(), 1u) << "in the end everything runs";
  return found.value();
}

TEST(HardwareQueues, AStreamWaitsForAnotherOneInItsQueue) {
  EXPECT_EQ(second_stream_is_seen("1", kShort), 0u);
  EXPECT_EQ(second_stream_is_seen("32", kLong), 1u);
}

TEST(HardwareQueues, AKernelThatHasBegunHoldsNothingBack) {
  const Environment modes{{"SHOAL_EMULATED_QUEUES", "1"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "1"}};
  const CudaStream first, second;
  PinnedWord word, found;
  launch(first, look_for_word, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(word.get()), kLong, found.get());
  launch(second, set_word, dim3(1), dim3(1), 0, word.get());
  first.synchronize();
  EXPECT_EQ(found.value(), 1u);
}

TEST(HardwareQueues, AreDealtInTurn) {
  const Environment modes{{"SHOAL_EMULATED_QUEUES", "1"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "3"}};
  const CudaStream first, second, third, fourth;
  for (const CudaStream* other : {&second, &third, &fourth}) {
    const bool same_queue = other == &fourth;
    PinnedWord word, found;
    launch(first, look_for_word, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(word.get()),
           same_queue ? kShort : kLong, found.get());
    launch(first, nothing, dim3(1), dim3(1), 0);
    launch(*other, set_word, dim3(1), dim3(1), 0, word.get());
    first.synchronize();
    other->synchronize();
    EXPECT_EQ(found.value(), same_queue ? 0u : 1u);
  }
}

/// Is set_word() launched while another kernel waits for it? `prepare` comes first.
bool launch_passes(
    uint64_t patience, const std::function<void()>& prepare = [] {}) {
  const Environment mode("SHOAL_EMULATED_LAZY", "1");
  const CudaStream waiting, other;
  PinnedWord word, found;
  const auto look = [&](uint64_t how_long) {
    launch(waiting, look_for_word, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(word.get()), how_long,
           found.get());
  };
  look(0);  // it is loaded now
  prepare();
  look(patience);
  launch(other, set_word, dim3(1), dim3(1), 0, word.get());
  waiting.synchronize();
  other.synchronize();
  EXPECT_EQ(word.value(), 1u) << "in the end everything runs";
  return found.value() != 0;
}

class LazyLoading : public testing::Test {
 protected:
  LazyLoading() { emulator::unload_kernels(); }
};

TEST_F(LazyLoading, TheFirstLaunchOfAKernelWaitsForTheGpu) {
  const Environment loading("CUDA_MODULE_LOADING", "LAZY");
  EXPECT_FALSE(launch_passes(kShort));
  EXPECT_TRUE(launch_passes(kLong)) << "the second one does not";
}

TEST_F(LazyLoading, EagerKernelsAreThere) {
  const Environment loading("CUDA_MODULE_LOADING", "EAGER");
  EXPECT_TRUE(launch_passes(kLong));
}

TEST_F(LazyLoading, AskingForAKernelLoadsIt) {
  const Environment loading("CUDA_MODULE_LOADING", std::nullopt);
  const auto* const kernel = reinterpret_cast<const void*>(set_word);
  EXPECT_TRUE(launch_passes(kLong, [kernel] {
    cudaFuncAttributes attributes;
    EXPECT_EQ(cudaFuncGetAttributes(&attributes, kernel), cudaSuccess);
  }));
  emulator::unload_kernels();
  EXPECT_TRUE(launch_passes(kLong, [kernel] {
    int blocks = 0;
    EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32, 0), cudaSuccess);
  }));
  emulator::unload_kernels();
  EXPECT_TRUE(launch_passes(kLong, [kernel] {
    EXPECT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60'000), cudaSuccess);
  }));
}

TEST_F(LazyLoading, OtherThreadsDoNotLaunchMeanwhile) {
  const Environment modes{{"SHOAL_EMULATED_LAZY", "1"}, {"CUDA_MODULE_LOADING", "LAZY"}};
  PinnedWord go, done;
  const CudaStream waiting, first, second;
  launch(second, set_word, dim3(1), dim3(1), 0, done.get());
  second.synchronize();
  *done.get() = 0;
  launch(waiting, wait_for_word, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(go.get()));
  std::thread loads([&] { launch(first, nothing, dim3(1), dim3(1), 0); });
  wait_until([] { return driver_is_locked(0); });
  std::thread launches([&] { launch(second, set_word, dim3(1), dim3(1), 0, done.get()); });
  wait_until([] { return waiting_for_driver(0) == 1; });
  EXPECT_EQ(done.value(), 0u);
  go.set();
  loads.join();
  launches.join();
  first.synchronize();
  second.synchronize();
  EXPECT_EQ(done.value(), 1u);
}

}  // namespace
}  // namespace shoal::cuda
