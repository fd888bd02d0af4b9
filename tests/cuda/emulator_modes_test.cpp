// The emulator's modes for what hangs on GPUs: room for blocks, and calls that keep others from launching.
#include <gtest/gtest.h>

#include <thread>

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

}  // namespace
}  // namespace shoal::cuda
