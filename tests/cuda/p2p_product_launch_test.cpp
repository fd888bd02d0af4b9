// Which products are launched together with the all_reduce and the norm behind them (p2p_product_test.cpp), by the
// calls that the emulator has counted.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/p2p_product.h"

namespace shoal::collectives::p2p {
namespace {

size_t launches(const std::function<void()>& work) {
  cuda::emulator::record_calls();
  work();
  const auto calls = cuda::emulator::take_calls();
  return static_cast<size_t>(std::count(calls.begin(), calls.end(), "cudaLaunchKernel"));
}

TEST(P2pProductOnce, IsOneLaunch) {
  Rig rig(2);
  auto products = products_of(rig, DType::kQ4_K, 256, 64);
  EXPECT_EQ(launches([&] { run(rig, products, 3); }), 2);
  EXPECT_EQ(launches([&] { run(rig, products, 0); }), 4);
}

// What is not taken is done by several kernels, with the same results.
TEST(P2pProductOnce, OtherProductsAreDoneApart) {
  const auto expect_apart = [](DType dtype, int64_t k, int64_t row, size_t shift, P2pOptions options = {}) {
    Rig rig(2, 1, options);
    auto products = products_of(rig, dtype, k, row, shift);
    const auto apart = run(rig, products, 0);
    EXPECT_GT(launches([&] { EXPECT_EQ(run(rig, products, 3), apart); }), 2)
        << name_of(dtype) << " " << k << " " << row;
  };
  expect_apart(DType::kQ3_K, 256, 64, 0);  // no kernel
  expect_apart(DType::kF16, 100, 64, 0);   // rows of weights that do not stream
  expect_apart(DType::kF16, 64, 66, 0);    // no whole quads
  expect_apart(DType::kF16, 64, 64, 1);    // not aligned
  expect_apart(DType::kF16, 64, 64, 0, {.bf16_wire = true});
}

}  // namespace
}  // namespace shoal::collectives::p2p
