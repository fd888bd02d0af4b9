// Launches of products that are fused with the following all_reduce and norm (p2p_product_test.cpp). The emulator
// records the launches. Some tests check which products are fused. Other tests make a product wait for other ranks, and
// check when the next kernel of the stream starts.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <thread>

#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/p2p_product.h"
#include "tests/cuda/pinned_word.h"
#include "tests/support/environment.h"

namespace shoal::collectives::p2p {
namespace {

using cuda::emulator::resident_blocks;
using shoal::test::Environment;
using shoal::test::PinnedWord;
using shoal::test::wait_until;

size_t launches(const std::function<void()>& work) {
  cuda::emulator::record_calls();
  work();
  const auto calls = cuda::emulator::take_calls();
  return static_cast<size_t>(std::count(calls.begin(), calls.end(), "cudaLaunchKernel"));
}

TEST(FusedP2pProduct, FusedProductTakesOneLaunchPerRank) {
  Rig rig(2);
  auto products = products_of(rig, DType::kQ4_K, 256, 64);
  EXPECT_EQ(launches([&] { run(rig, products, 3); }), 2);
  EXPECT_EQ(launches([&] { run(rig, products, 0); }), 4);
}

// Unsupported products run in several kernels and give the same results.
TEST(FusedP2pProduct, UnsupportedProductsRunInSeparateKernels) {
  const auto expect_apart = [](DType dtype, int64_t k, int64_t row, size_t shift, P2pOptions options = {}) {
    Rig rig(2, 1, options);
    auto products = products_of(rig, dtype, k, row, shift);
    const auto apart = run(rig, products, 0);
    EXPECT_GT(launches([&] { EXPECT_EQ(run(rig, products, 3), apart); }), 2)
        << name_of(dtype) << " " << k << " " << row;
  };
  expect_apart(DType::kQ3_K, 256, 64, 0);  // q3_K has no fused kernel
  expect_apart(DType::kF16, 100, 64, 0);   // the kernel cannot stream rows of 100 elements
  expect_apart(DType::kF16, 64, 66, 0);    // the length of the row is not a multiple of four
  expect_apart(DType::kF16, 64, 64, 1);    // buffers are not aligned
  expect_apart(DType::kF16, 64, 64, 0, {.bf16_wire = true});
}

__global__ void hold_back(const uint32_t* word) {
  while (cuda::load_acquire(word) == 0) cuda::spin_pause();
}
__global__ void take_room() {
  cuda::let_next_start();
  cuda::wait_for_previous();
}

/// Products whose result row is divided into four parts. After each product, a kernel of 64 blocks fills all free
/// multiprocessors of a GPU with 16 multiprocessors.
class Filled {
 public:
  explicit Filled(int gpus) : rig_(2, gpus, {.max_blocks = 4}), products_(products_of(rig_, DType::kQ8_0, 64, 8192)) {}

  void queue(int rank) {
    PinnedWord& go = gos_.emplace_back();
    const cuda::CurrentGpu current(rig_.gpu(rank));
    cuda::launch(rig_.stream(rank), hold_back, dim3(1), dim3(1), 0, static_cast<const uint32_t*>(go.get()));
    products_[static_cast<size_t>(rank)]->launch_joined(rig_.communicator(), rank);
    cuda::launch_early(rig_.stream(rank), take_room, dim3(64), dim3(512), 0);
    go.set();
  }
  void finish() { rig_.synchronize_and_check(); }

 private:
  std::list<PinnedWord> gos_;
  Rig rig_;
  std::vector<std::unique_ptr<RankProduct>> products_;
};

struct FilledGpus : testing::Test {
  const Environment modes_{
      {"SHOAL_EMULATED_EARLY", "1"}, {"SHOAL_EMULATED_RESIDENCY", "1"}, {"SHOAL_EMULATED_PROCESSORS", "16"}};
};

TEST_F(FilledGpus, NextKernelStartsWhileARankWaitsOnItsOwnGpu) {
  Filled mesh(2);
  mesh.queue(0);
  wait_until([] { return resident_blocks(0) == 16; });
  mesh.queue(1);
  mesh.finish();
}

TEST_F(FilledGpus, NextKernelStartsAfterResultRowIfRanksShareGpu) {
  Filled mesh(1);
  mesh.queue(0);
  wait_until([] { return resident_blocks(0) == 2; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(resident_blocks(0), 2) << "two blocks run, each of which finishes two parts of the row";
  mesh.queue(1);
  mesh.finish();
}

}  // namespace
}  // namespace shoal::collectives::p2p
