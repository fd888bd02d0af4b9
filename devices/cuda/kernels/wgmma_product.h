// Computes the products of tile_product.h with wgmma instructions (wgmma.h, compute capability 9.0). A block has two
// warpgroups with 64 rows each. A block computes a tile of 128 rows of `a` and kColumns columns of b, in steps of 64
// elements of k.
//
// wgmma runs asynchronously, so no warps are reserved for copies and conversion. While a step is multiplied, all
// threads start the copies for the step after the next step and convert the next step's rows of `a`. Each warpgroup
// itself converts the rows that it multiplies. One barrier of the block per step ensures that b's tile is complete.
//
//   step i:  wgmmas of i begin | copies of i + 2 begin | wgmmas of i - 1 are done | a's tile of i + 1 is written
#pragma once

#include "devices/cuda/kernels/tile_operands.h"
#include "devices/cuda/kernels/wgmma.h"

namespace shoal::cuda {

inline constexpr int kWgmmaThreads = 256;
inline constexpr int kWgmmaRows = 64;  ///< number of rows per warpgroup
/// Alignment of tiles, in bytes. Dynamic shared memory itself is aligned to only 16 bytes.
inline constexpr int kWgmmaAlignment = 1024;

/// Layout of a block's shared memory.
template <class Rows, int kColumns, int kTerms>
struct WgmmaShape {
  /// Number of steps whose tiles of b are in shared memory at the same time. If rows of `a` are f16 or bf16, shared
  /// memory contains the tiles of `a` for the same steps. The wgmmas of the previous step may still read their tiles,
  /// the current step uses its tiles, and the tiles of two later steps are being copied.
  static constexpr int kStages = 4;
  static constexpr int kATile = kTileRows * kTileRowBytes;
  static constexpr int kBTile = kColumns * kTileRowBytes;
  static constexpr int kATiles = Rows::kPlain ? kStages : 2;
  static constexpr int kBOffset = kATiles * kATile;
  static constexpr int kStagingOffset = kBOffset + kStages * kTerms * kBTile;
  static constexpr int kSharedBytes = kWgmmaAlignment + kStagingOffset + 2 * staged_bytes<Rows>();
  static_assert(kSharedBytes <= 227 * 1024);
};

template <class Rows, int kColumns, int kTerms>
struct WgmmaBlock {
  using Shape = WgmmaShape<Rows, kColumns, kTerms>;

  TilePart part;
  uint8_t* shared;  ///< aligned to kWgmmaAlignment
  uint64_t first_a,
      first_b;  ///< descriptors of the first tile of `a` (only this warpgroup's rows) and of the first tile of b
  float sums[kColumns / 2] = {};

  __device__ WgmmaBlock(const TileProduct& product, uint8_t* memory, unsigned block)
      : part(product, block, kColumns, kTerms) {
    shared = memory + (kWgmmaAlignment - shared_address(memory) % kWgmmaAlignment) % kWgmmaAlignment;
    const uint32_t address = shared_address(shared), warpgroup = threadIdx.x / 128;
    // Layout k128: the groups of eight 128-byte rows are contiguous.
    constexpr uint32_t kStride = 8 * kTileRowBytes;
    first_a = operand_descriptor(address + warpgroup * kWgmmaRows * kTileRowBytes, 0, kStride, Swizzle::k128);
    first_b = operand_descriptor(address + Shape::kBOffset, 0, kStride, Swizzle::k128);
  }

  __device__ uint8_t* a_tile(int step) const { return shared + step % Shape::kATiles * Shape::kATile; }
  __device__ uint8_t* b_tile(int step) const {
    return shared + Shape::kBOffset + step % Shape::kStages * (kTerms * Shape::kBTile);
  }

  __device__ __forceinline__ void copy_plain_a(int step) const {
    if constexpr (Rows::kPlain) {
      if (step < part.steps) part.template copy_plain_a<kWgmmaThreads>(step, a_tile(step));
    }
  }
  __device__ __forceinline__ void copy_b(int step) const {
    if (step < part.steps) part.template copy_b<kWgmmaThreads, kColumns, kTerms>(step, b_tile(step));
  }

  /// Starts to multiply the tiles of a step.
  __device__ __forceinline__ void multiply(int step) {
    const uint64_t a = descriptor_at(first_a, step % Shape::kATiles * Shape::kATile);
    const uint64_t b = descriptor_at(first_b, step % Shape::kStages * (kTerms * Shape::kBTile));
    wgmma_fence();
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
#pragma unroll
      for (int i = 0; i < kTileStep / 16; ++i) {
        const uint64_t a_part = descriptor_at(a, i * 32), b_part = descriptor_at(b, term * Shape::kBTile + i * 32);
        if constexpr (Rows::kBf16) {
          wgmma_bf16(sums, a_part, b_part);
        } else {
          wgmma_f16(sums, a_part, b_part);
        }
      }
    }
    wgmma_commit();
  }

  /// Stores the sums. All other uses of the shared memory must have ended.
  __device__ void store() const {
    static_assert(Shape::kSharedBytes - kWgmmaAlignment >= sums_bytes(kColumns));
    auto* to = reinterpret_cast<float*>(shared);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    float* const own = to + lane % 4 * 2 * kSumsPitch + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) own[(i / 4 * 8 + i % 2) * kSumsPitch + i / 2 % 2 * 8] = sums[i];
    __syncthreads();
    store_tile<kWgmmaThreads, kColumns>(part, to);
  }
};

/// Converts quantised rows of `a`; does nothing for plain rows.
template <class Rows>
struct WgmmaRows : Dequantizer<Rows, kWgmmaThreads> {
  using Base = Dequantizer<Rows, kWgmmaThreads>;
  using Base::Base;
  __device__ __forceinline__ void write_all(uint8_t* tile) const {
#pragma unroll
    for (int i = 0; i < Base::kParts; ++i) this->write(tile, i);
  }
  __device__ __forceinline__ void sync() const {
    sync_warpgroup();
  }
  /// If `step` begins group g, starts to copy group g + 1 into the buffer of group g - 1.
  __device__ __forceinline__ void copy_for(int step) const {
    if (step % Base::kStepsPerGroup == 0) this->copy_group(step / Base::kStepsPerGroup + 1);
  }
};
template <class Rows>
requires(Rows::kPlain) struct WgmmaRows<Rows> {
  __device__ WgmmaRows(const TilePart&, uint8_t*) {}
  __device__ void copy_group(int) const {}
  __device__ void copy_for(int) const {}
  __device__ void read(int) {}
  __device__ void sync() const {}
  __device__ void write_all(uint8_t*) const {}
};

template <class Rows, int kColumns, int kTerms>
__device__ __forceinline__ void multiply_steps(WgmmaBlock<Rows, kColumns, kTerms>& block) {
  WgmmaRows<Rows> rows(block.part, block.shared + WgmmaShape<Rows, kColumns, kTerms>::kStagingOffset);
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    rows.copy_group(i);
    block.copy_plain_a(i);
  }
  wait_for_previous();
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    block.copy_b(i);
    copy_async_commit();
  }
  copy_async_wait<1>();
  __syncthreads();
  rows.read(0);
  rows.write_all(block.a_tile(0));
  int step = 0;
#pragma unroll 1
  do {  // do-while: if the loop could have no iterations, ptxas would move the sums while wgmmas run
    copy_async_wait<1>();
    fence_async();
    __syncthreads();  // this step's tiles are complete, and the tiles of two steps ago are no longer read
    block.multiply(step);
    block.copy_plain_a(step + 2);
    block.copy_b(step + 2);
    rows.copy_for(step + 1);
    copy_async_commit();
    rows.read(step + 1);  // in the last step, read() loads arbitrary bytes that are not used
    wgmma_wait<1>();
    rows.sync();
    rows.write_all(block.a_tile(step + 1));
  } while (++step < block.part.steps);
  wgmma_wait<0>();
  copy_async_wait<0>();
}

template <class Rows, int kColumns, int kTerms>
__global__ void __launch_bounds__(kWgmmaThreads, 1) wgmma_product(const TileProduct product) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(SHOAL_CUDA_EMULATED)
  SHOAL_DYNAMIC_SHARED(uint8_t, shared);
  let_next_start();
  if (!product.is_constant) wait_for_previous();
  WgmmaBlock<Rows, kColumns, kTerms> block(product, shared, blockIdx.x);
  if (!block.part.exists) return;
  if (block.part.is_zero) return store_zeros<kWgmmaThreads>(block.part);
  multiply_steps(block);
  __syncthreads();
  block.store();
#endif
}

}  // namespace shoal::cuda
