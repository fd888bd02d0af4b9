// The emulator's modes for what hangs on GPUs: room for blocks, and calls that keep others from launching.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "devices/cuda/kernels/platform.h"
#include "tests/cuda/cuda_mesh.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"

namespace shoal::cuda {
namespace {

using emulator::calls_in_progress;
using emulator::resident_blocks;
using test::CudaStream;
using test::Environment;
using test::wait_until;

/// Pinned memory with a word for which kernels wait.
class Word {
 public:
  Word() {
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof(uint32_t), cudaHostAllocMapped), cudaSuccess);
    *word_ = 0;
  }
  ~Word() { EXPECT_EQ(cudaFreeHost(word_), cudaSuccess); }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;
  uint32_t* get() const { return word_; }
  void set() { store_release(word_, 1); }

 private:
  uint32_t* word_ = nullptr;
};

__global__ void wait_for_word(const uint32_t* word) {
  while (load_acquire(word) == 0) spin_pause();
}
__global__ void set_word(uint32_t* word) {
  if (threadIdx.x == 0) store_release(word, 1);
}

TEST(Residency, BlocksWaitForRoom) {
  const Environment modes{{"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_PROCESSORS", "2"}};
  Word go, done;
  const CudaStream waiting, other;
  launch(waiting, wait_for_word, dim3(3), dim3(512), 0, static_cast<const uint32_t*>(go.get()));
  wait_until([] { return resident_blocks(0) == 2; });
  launch(other, set_word, dim3(1), dim3(32), 0, done.get());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
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
  Word go, done;
  const CudaStream waiting, other;
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 16), cudaSuccess);
  launch(waiting, wait_for_word, dim3(1), dim3(32), 0, static_cast<const uint32_t*>(go.get()));
  std::thread frees([&] { EXPECT_EQ(cudaFree(memory), cudaSuccess); });
  wait_until([] { return calls_in_progress("cudaFree") == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until it has the lock
  std::thread launches([&] { launch(other, set_word, dim3(1), dim3(32), 0, done.get()); });
  wait_until([] { return calls_in_progress("cudaLaunchKernel") == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(*done.get(), 0u);
  go.set();
  frees.join();
  launches.join();
  other.synchronize();
  EXPECT_EQ(*done.get(), 1u);
}

}  // namespace
}  // namespace shoal::cuda
