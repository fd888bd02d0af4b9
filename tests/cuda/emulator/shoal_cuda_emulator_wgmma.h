// Warpgroup products. devices/cuda/kernels/wgmma.h includes this file if SHOAL_CUDA_EMULATED is defined. Each warp
// computes its own rows of a product in wgmma_wait(). Until then, the sums of the warp are NaN. The emulator reads the
// operands of the whole warpgroup twice: when the product begins and in wgmma_wait(). The program aborts if the
// operands have changed between the two reads, for example because copies were incomplete at the first read. The
// program also aborts if lanes are missing, if a group has no wgmma_fence(), or if a warp ends before its products are
// complete. The emulator does not detect a missing fence_async().
#pragma once

#include <cstdint>
#include <source_location>

#include "tests/cuda/emulator/block.h"

namespace shoal::cuda {
namespace emulator {

enum class ProductOf : uint8_t { kHalves, kBrains };

/// Returns the address of `shared` within shared memory. As on a GPU, the first 1 KiB of addresses is reserved.
uint32_t shared_address(const void* shared);
void fence_products(const std::source_location& where);
void begin_product(ProductOf elements, float* sums, int sum_count, uint64_t a, uint64_t b,
                   const std::source_location& where);
void commit_products(const std::source_location& where);
void wait_for_products(unsigned pending_groups, const std::source_location& where);

}  // namespace emulator

#define SHOAL_HERE const std::source_location& where = std::source_location::current()

inline uint32_t shared_address(const void* shared) {
  return emulator::shared_address(shared);
}
inline void fence_async() {}
inline void sync_warpgroup(SHOAL_HERE) {
  emulator::g_runner->meet_warpgroup(where);
}
inline void wgmma_fence(SHOAL_HERE) {
  emulator::fence_products(where);
}
template <int kSums>
void wgmma_f16(float (&d)[kSums], uint64_t a, uint64_t b, SHOAL_HERE) {
  emulator::begin_product(emulator::ProductOf::kHalves, d, kSums, a, b, where);
}
template <int kSums>
void wgmma_bf16(float (&d)[kSums], uint64_t a, uint64_t b, SHOAL_HERE) {
  emulator::begin_product(emulator::ProductOf::kBrains, d, kSums, a, b, where);
}
inline void wgmma_commit(SHOAL_HERE) {
  emulator::commit_products(where);
}
template <int kPending>
void wgmma_wait(SHOAL_HERE) {
  static_assert(kPending >= 0);
  emulator::wait_for_products(kPending, where);
}

#undef SHOAL_HERE
}  // namespace shoal::cuda
