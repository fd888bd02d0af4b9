// Matrix products on tensor cores with mma.sync: c[m, n] = sum over k of a[k, m] * b[k, n]. A block has four warps and
// computes a tile of 128 rows of `a` and kColumns columns of b, in steps of 64 elements of k. While a step is
// multiplied, quantised rows of the next step are dequantised, so that tensor cores and arithmetic units work
// concurrently.
#pragma once

#include "devices/cuda/kernels/mma.h"
#include "devices/cuda/kernels/tile_operands.h"

namespace shoal::cuda {

inline constexpr int kTileThreads = 128;

/// Layout of a block's shared memory.
template <class Rows, int kColumns, int kTerms>
struct TileShape {
  static constexpr int kWarpsAlongRows = kColumns == 32 ? 4 : 2;
  static constexpr int kWarpsAlongColumns = 4 / kWarpsAlongRows;
  static constexpr int kWarpRows = kTileRows / kWarpsAlongRows;  ///< number of rows per warp
  static constexpr int kWarpColumns = kColumns / kWarpsAlongColumns;
  static constexpr int kRowMmas = kWarpRows / 16, kColumnMmas = kWarpColumns / 8;
  static_assert(kColumnMmas % 2 == 0);

  /// Number of steps whose tiles of b are in shared memory at the same time. If rows of `a` are f16 or bf16, shared
  /// memory contains the tiles of `a` for the same steps.
  static constexpr int kStages = Rows::kPlain && kTerms == 1 ? 3 : 2;
  static constexpr int kATile = kTileRows * kTileRowBytes;
  static constexpr int kBTile = kColumns * kTileRowBytes;
  static constexpr int kATiles = Rows::kPlain ? kStages : 2;
  static constexpr int kAOffset = 2 * staged_bytes<Rows>();
  static constexpr int kBOffset = kAOffset + kATiles * kATile;
  static constexpr int kSharedBytes = kBOffset + kStages * kTerms * kBTile;
  /// A multiprocessor has 228 KB of shared memory. The system reserves 1 KB of this memory per block.
  static constexpr int kBlocksPerProcessor = 2 * (kSharedBytes + 1024) <= 228 * 1024 ? 2 : 1;
};

/// One block and the part of the product that it computes.
template <class Rows, int kColumns, int kTerms>
struct TileBlock {
  using Shape = TileShape<Rows, kColumns, kTerms>;

  TilePart part;
  uint8_t* shared;
  /// Byte offsets of the chunk c that this thread loads first: `a_place` in a tile of `a`, `b_place` in a tile of b.
  /// The offset of chunk c ^ i is a_place ^ 16 i or b_place ^ 16 i.
  uint32_t a_place, b_place;
  float sums[Shape::kRowMmas][Shape::kColumnMmas][4];

  __device__ TileBlock(const TileProduct& product, uint8_t* memory, unsigned block)
      : part(product, block, kColumns, kTerms), shared(memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    a_place = tile_place(warp / Shape::kWarpsAlongColumns * Shape::kWarpRows + lane % 16, lane / 16);
    b_place =
        tile_place(warp % Shape::kWarpsAlongColumns * Shape::kWarpColumns + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (auto& row_sums : sums) {
#pragma unroll
      for (auto& mma_sums : row_sums) {
#pragma unroll
        for (float& sum : mma_sums) sum = 0;
      }
    }
  }

  __device__ uint8_t* a_tile(int i) const {
    return shared + Shape::kAOffset + i * Shape::kATile;
  }
  __device__ uint8_t* b_tile(int i) const {
    return shared + Shape::kBOffset + i * kTerms * Shape::kBTile;
  }

  __device__ void copy_b(int step, int stage) const {
    part.template copy_b<kTileThreads, kColumns, kTerms>(step, b_tile(stage));
  }
  __device__ void copy_plain_a(int step, int stage) const {
    part.template copy_plain_a<kTileThreads>(step, a_tile(stage));
  }

  /// Multiplies a quarter of a step: 16 elements of k.
  __device__ __forceinline__ void multiply(const uint8_t* a_from, const uint8_t* b_from, int quarter) {
    // Each load fetches the operands of two mmas as four 8 x 8 matrices. The first two matrices are the first and
    // second 8 elements of k for columns 0..7. The last two matrices are the same elements of k for columns 8..15.
    uint32_t b_parts[kTerms][Shape::kColumnMmas][2];
    const uint8_t* b_at = b_from + (b_place ^ quarter * 2 * kChunkBytes);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
#pragma unroll
      for (int j = 0; j < Shape::kColumnMmas; j += 2) {
        uint32_t pair[4];
        load_matrix_x4(pair, b_at + term * Shape::kBTile + j * 8 * kTileRowBytes);
        b_parts[term][j][0] = pair[0], b_parts[term][j][1] = pair[1];
        b_parts[term][j + 1][0] = pair[2], b_parts[term][j + 1][1] = pair[3];
      }
    }
    // Each load fetches four 8 x 8 matrices in the order of an mma's registers. The first two matrices are the first 8
    // elements of k for rows 0..7 and for rows 8..15. The last two matrices are the second 8 elements of k for the same
    // rows.
    const uint8_t* a_at = a_from + (a_place ^ quarter * 2 * kChunkBytes);
#pragma unroll
    for (int i = 0; i < Shape::kRowMmas; ++i) {
      uint32_t a_parts[4];
      load_matrix_x4(a_parts, a_at + i * 16 * kTileRowBytes);
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
#pragma unroll
        for (int j = 0; j < Shape::kColumnMmas; ++j) {
          if constexpr (Rows::kBf16) {
            mma_bf16(sums[i][j], a_parts, b_parts[term][j]);
          } else {
            mma_f16(sums[i][j], a_parts, b_parts[term][j]);
          }
        }
      }
    }
  }

  /// Stores the sums. All other uses of the shared memory must have ended.
  __device__ void store() const {
    static_assert(Shape::kSharedBytes >= sums_bytes(kColumns));
    auto* to = reinterpret_cast<float*>(shared);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int m = warp / Shape::kWarpsAlongColumns * Shape::kWarpRows + lane / 4;
    const int n = warp % Shape::kWarpsAlongColumns * Shape::kWarpColumns + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < Shape::kColumnMmas; ++j) {
#pragma unroll
      for (int i = 0; i < Shape::kRowMmas; ++i) {
#pragma unroll
        for (int l = 0; l < 4; ++l) to[(n + j * 8 + l % 2) * kSumsPitch + m + i * 16 + l / 2 * 8] = sums[i][j][l];
      }
    }
    __syncthreads();
    store_tile<kTileThreads, kColumns>(part, to);
  }
};

/// Multiplies f16 or bf16 rows of `a`. Each step starts to copy the tiles of `a` and b that are multiplied kStages - 1
/// steps later.
template <class Rows, int kColumns, int kTerms>
__device__ __forceinline__ void multiply_plain(TileBlock<Rows, kColumns, kTerms>& block) {
  constexpr int kStages = TileShape<Rows, kColumns, kTerms>::kStages;
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < block.part.steps) block.copy_plain_a(i, i);
  }
  wait_for_previous();
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < block.part.steps) block.copy_b(i, i);
    copy_async_commit();
  }
  int stage = 0, next = kStages - 1;
  for (int step = 0; step < block.part.steps; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();  // the step's tiles are complete, and the previous step's tiles are no longer read
    if (step + kStages - 1 < block.part.steps) {
      block.copy_plain_a(step + kStages - 1, next);
      block.copy_b(step + kStages - 1, next);
    }
    copy_async_commit();
#pragma unroll
    for (int i = 0; i < kTileStep / 16; ++i) block.multiply(block.a_tile(stage), block.b_tile(stage), i);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    next = next + 1 == kStages ? 0 : next + 1;
  }
}

/// Multiplies quantised rows of `a`. Step i first starts to copy b's tile of step i + 1. If step i + 1 begins a group
/// of `a`, step i then starts to copy the group after that group. While these copies are in flight, step i writes `a`'s
/// tile of step i + 1. At its end, step i waits for all copies except the copy of the group. So the copy of a group may
/// take two steps.
template <class Rows, int kColumns, int kTerms>
__device__ __forceinline__ void multiply_quantized(TileBlock<Rows, kColumns, kTerms>& block) {
  using Converter = Dequantizer<Rows, kTileThreads>;
  Converter rows(block.part, block.shared);
#pragma unroll 1
  for (int i = 0; i < 2; ++i) rows.copy_group(i);
  wait_for_previous();
  block.copy_b(0, 0);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  rows.read(0);
#pragma unroll
  for (int i = 0; i < 4; ++i) rows.write(block.a_tile(0), i);
  for (int step = 0; step < block.part.steps; ++step) {
    const int now = step % 2, next = 1 - now;
    __syncthreads();  // this step's tiles are complete, and no warp still reads the other tiles
    const bool more = step + 1 < block.part.steps;
    if (more) block.copy_b(step + 1, next);
    copy_async_commit();
    if (more && (step + 1) % Converter::kStepsPerGroup == 0) {
      rows.copy_group((step + 1) / Converter::kStepsPerGroup + 1);
    }
    copy_async_commit();
    // The first quarter is multiplied before read(), to keep the tensor cores busy. In the last step, read() loads
    // arbitrary bytes that are not used.
    block.multiply(block.a_tile(now), block.b_tile(now), 0);
    rows.read(step + 1);
#pragma unroll
    for (int i = 1; i < kTileStep / 16; ++i) {
      rows.write(block.a_tile(next), i - 1);
      block.multiply(block.a_tile(now), block.b_tile(now), i);
    }
    rows.write(block.a_tile(next), kTileStep / 16 - 1);
    copy_async_wait<1>();
  }
}

template <class Rows, int kColumns, int kTerms>
__global__ void __launch_bounds__(kTileThreads, (TileShape<Rows, kColumns, kTerms>::kBlocksPerProcessor))
    tile_product(const TileProduct product) {
  SHOAL_DYNAMIC_SHARED(uint8_t, shared);
  let_next_start();
  if (!product.is_constant) wait_for_previous();
  TileBlock<Rows, kColumns, kTerms> block(product, shared, blockIdx.x);
  if (!block.part.exists) return;
  if (block.part.is_zero) return store_zeros<kTileThreads>(block.part);
  if constexpr (Rows::kPlain) {
    multiply_plain(block);
  } else {
    multiply_quantized(block);
  }
  copy_async_wait<0>();
  __syncthreads();
  block.store();
}

}  // namespace shoal::cuda
