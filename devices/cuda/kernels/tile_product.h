// Products of matrices on tensor cores: c[m, n] = sum over k of a[k, m] * b[k, n], a tile of 128 rows of a and kColumns
// columns of b per block, 64 elements of k a step, four warps.
//
// b comes converted (tile_columns.h): rows of k padded to whole steps, 16-bit, each followed by its further terms.
//
// Quantised rows of a pass through shared memory twice. Their blocks are copied as they are, a group of 128 or 256
// elements of each row at a time and two groups deep; a step ahead of the products each thread reads its 32 elements
// of the step (tile_formats.h) and writes them as halves, or bf16, into the tile, between the products of the step
// before, so that tensor cores and arithmetic run beside each other. f16 and bf16 rows are copied into the tile at
// once.
//
// Tiles have rows of 64 halves, eight chunks of 16 bytes; chunk c of row r lies at place c ^ (r % 8): what a matrix
// load, a copy or eight threads with a row each touch at a time lies in different banks.
#pragma once

#include <cstring>
#include <type_traits>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/mma.h"
#include "devices/cuda/kernels/tile_formats.h"

namespace shoal::cuda {

inline constexpr int kTileRows = 128;
inline constexpr int kTileStep = 64;
inline constexpr int kTileThreads = 128;

struct TileProduct {
  const std::byte* a = nullptr;
  int64_t a_strides[3]{};           ///< bytes: rows, axis 2, axis 3
  const uint16_t* b = nullptr;      ///< [axis 3][axis 2][n][term][k_padded]
  const float* b_scales = nullptr;  ///< [axis 3][axis 2][n]: what the sums are multiplied by; nullptr: 1
  float* c = nullptr;
  int64_t c_strides[3]{};    ///< elements: columns, axis 2, axis 3
  int64_t split_stride = 0;  ///< elements from the sums of one part of k to those of the next
  // Numbers of elements fit into 31 bits; the address of one is reckoned in 64.
  int m = 0, n = 0, k = 0, k_padded = 0;
  int batches2 = 1;              ///< axis 2 of c
  int shared2 = 1, shared3 = 1;  ///< matrices of b for each of a
  int row_tiles = 1, column_tiles = 1;
  int splits = 1, steps_per_split = 1;  ///< steps_per_split: whole groups
};

/// f16 and bf16 rows.
struct PlainHalf {
  static constexpr bool kPlain = true, kBrain = false;
};
struct PlainBrain {
  static constexpr bool kPlain = true, kBrain = true;
};
/// Rows of a format of tile_formats.h.
template <class F>
struct Dequantized : F {
  static constexpr bool kPlain = false;
  static constexpr int kGroupBytes = F::kBlocksPerGroup * static_cast<int>(sizeof(typename F::Block));
  static constexpr int kUnits = F::kBlocksPerGroup * F::kUnitsPerBlock;                       ///< of a group
  static constexpr int kBefore = kChunkBytes - static_cast<int>(alignof(typename F::Block));  ///< at most, in a chunk
  static constexpr int kChunks = (kGroupBytes + kBefore + kChunkBytes - 1) / kChunkBytes;
  static constexpr int kStagedBytes = kTileRows * kChunks * kChunkBytes;
};

/// How the shared memory of a block is divided.
template <class Rows, int kColumns, int kTerms>
struct TileShape {
  static constexpr int kWarpsAlongRows = kColumns == 32 ? 4 : 2;
  static constexpr int kWarpsAlongColumns = 4 / kWarpsAlongRows;
  static constexpr int kWarpRows = kTileRows / kWarpsAlongRows;  ///< of a warp's part
  static constexpr int kWarpColumns = kColumns / kWarpsAlongColumns;
  static constexpr int kRowMmas = kWarpRows / 16, kColumnMmas = kWarpColumns / 8;
  static_assert(kColumnMmas % 2 == 0);

  /// Of b, and of plain rows of a.
  static constexpr int kStages = Rows::kPlain && kTerms == 1 ? 3 : 2;
  static constexpr int kATile = kTileRows * kTileStep * 2;
  static constexpr int kBTile = kColumns * kTileStep * 2;
  static constexpr int staged_bytes() {
    if constexpr (Rows::kPlain) {
      return 0;
    } else {
      return Rows::kStagedBytes;
    }
  }
  static constexpr int kATiles = Rows::kPlain ? kStages : 2;
  static constexpr int kAOffset = 2 * staged_bytes();
  static constexpr int kBOffset = kAOffset + kATiles * kATile;
  static constexpr int kSharedBytes = kBOffset + kStages * kTerms * kBTile;
  /// Of 228 KB, 1 KB of which goes to the system for each block.
  static constexpr int kBlocksPerProcessor = 2 * (kSharedBytes + 1024) <= 228 * 1024 ? 2 : 1;
};

__device__ inline uint32_t tile_place(uint32_t row, uint32_t chunk) {
  return row * (kTileStep * 2) + (chunk ^ row % 8) * kChunkBytes;
}

/// Two halves, or bf16, as the register that holds them, and back.
__device__ inline uint32_t register_of(__half2 halves) {
  uint32_t bits;
  memcpy(&bits, &halves, sizeof(bits));
  return bits;
}
__device__ inline uint32_t register_of(__nv_bfloat162 brains) {
  uint32_t bits;
  memcpy(&bits, &brains, sizeof(bits));
  return bits;
}
template <class Pair>
__device__ inline Pair pair_of(uint32_t bits) {
  Pair pair;
  memcpy(static_cast<void*>(&pair), &bits, sizeof(bits));
  return pair;
}

/// One block: which part of the product, and the steps it is made of.
template <class Rows, int kColumns, int kTerms>
struct TileBlock {
  using Shape = TileShape<Rows, kColumns, kTerms>;

  const TileProduct& p;
  uint8_t* shared;
  int row, column;  ///< first of the tile
  int batch, split;
  const std::byte* a;  ///< first row of the tile
  const uint16_t* b;   ///< first column of the tile
  int first_step, steps;
  /// Where this thread loads the first elements of its warp's part. Chunk c ^ i lies at the place of c ^ 16 i.
  uint32_t a_place, b_place;
  float sums[Shape::kRowMmas][Shape::kColumnMmas][4];

  __device__ TileBlock(const TileProduct& product, uint8_t* memory, int block) : p(product), shared(memory) {
    column = block % p.column_tiles * kColumns;
    block /= p.column_tiles;  // blocks that share rows of a run beside each other
    row = block % p.row_tiles * kTileRows;
    block /= p.row_tiles;
    split = block % p.splits;
    batch = block / p.splits;
    const int i2 = batch % p.batches2, i3 = batch / p.batches2;
    a = p.a + row * p.a_strides[0] + i2 / p.shared2 * p.a_strides[1] + i3 / p.shared3 * p.a_strides[2];
    b = p.b + static_cast<int64_t>((batch * p.n + column) * kTerms) * p.k_padded;
    const int all = p.k_padded / kTileStep;
    first_step = split * p.steps_per_split;
    steps = all - first_step < p.steps_per_split ? all - first_step : p.steps_per_split;
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

  /// b's part of a step; columns past the last are zeros.
  __device__ void copy_b(int step, int stage) const {
    constexpr int kRows = kTileThreads / 8 / kTerms;  // that all threads copy at a time
    static_assert(kColumns % kRows == 0);
    const int chunk = static_cast<int>(threadIdx.x) % 8, r = static_cast<int>(threadIdx.x) / 8;
    const int term = r % kTerms, n = r / kTerms;
    const uint16_t* from = b + static_cast<int64_t>(r) * p.k_padded + (first_step + step) * kTileStep + chunk * 8;
    uint8_t* to = b_tile(stage) + term * Shape::kBTile + tile_place(n, chunk);
    const int left = p.n - column - n;
#pragma unroll
    for (int i = 0; i < kColumns / kRows; ++i) {
      const bool valid = i * kRows < left;
      copy_async_16(to + i * kRows * kTileStep * 2, valid ? from : p.b, valid);
      from += static_cast<int64_t>(kRows * kTerms) * p.k_padded;
    }
  }

  /// Plain rows of a; zeros past the last row and past k, which is a multiple of 8.
  __device__ void copy_plain_a(int step, int stage) const {
    const int begin = (first_step + step) * kTileStep;
#pragma unroll
    for (int i = 0; i < kTileRows * 8 / kTileThreads; ++i) {
      const int at = i * kTileThreads + static_cast<int>(threadIdx.x), chunk = at % 8, r = at / 8;
      const bool valid = row + r < p.m && begin + chunk * 8 < p.k;
      const std::byte* from = valid ? a + r * p.a_strides[0] + (begin + chunk * 8) * 2 : p.a;
      copy_async_16(a_tile(stage) + tile_place(r, chunk), from, valid);
    }
  }

  /// The products of 16 elements of k.
  __device__ __forceinline__ void multiply(const uint8_t* a_from, const uint8_t* b_from, int part) {
    // Two mmas of columns at a time: both halves of the elements for columns 0..7, then for 8..15.
    uint32_t b_parts[kTerms][Shape::kColumnMmas][2];
    const uint8_t* b_at = b_from + (b_place ^ part * 2 * kChunkBytes);
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
#pragma unroll
      for (int j = 0; j < Shape::kColumnMmas; j += 2) {
        uint32_t pair[4];
        load_matrix_x4(pair, b_at + term * Shape::kBTile + j * 8 * kTileStep * 2);
        b_parts[term][j][0] = pair[0], b_parts[term][j][1] = pair[1];
        b_parts[term][j + 1][0] = pair[2], b_parts[term][j + 1][1] = pair[3];
      }
    }
    // Matrices in the order of an mma's registers: rows 0..7 and 8..15 of the first 8 elements, then of the others.
    const uint8_t* a_at = a_from + (a_place ^ part * 2 * kChunkBytes);
#pragma unroll
    for (int i = 0; i < Shape::kRowMmas; ++i) {
      uint32_t a_parts[4];
      load_matrix_x4(a_parts, a_at + i * 16 * kTileStep * 2);
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
#pragma unroll
        for (int j = 0; j < Shape::kColumnMmas; ++j) {
          if constexpr (Rows::kBrain) {
            mma_bf16(sums[i][j], a_parts, b_parts[term][j]);
          } else {
            mma_f16(sums[i][j], a_parts, b_parts[term][j]);
          }
        }
      }
    }
  }

  __device__ void store() const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int m = row + warp / Shape::kWarpsAlongColumns * Shape::kWarpRows + lane / 4;
    const int n = column + warp % Shape::kWarpsAlongColumns * Shape::kWarpColumns + lane % 4 * 2;
    float* c = p.c + split * p.split_stride + batch % p.batches2 * p.c_strides[1] + batch / p.batches2 * p.c_strides[2];
#pragma unroll
    for (int j = 0; j < Shape::kColumnMmas; ++j) {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int to_column = n + j * 8 + l;
        if (to_column >= p.n) continue;
        const float scale = p.b_scales != nullptr ? p.b_scales[batch * p.n + to_column] : 1;
        float* to = c + to_column * p.c_strides[0];
#pragma unroll
        for (int i = 0; i < Shape::kRowMmas; ++i) {
          if (m + i * 16 < p.m) to[m + i * 16] = sums[i][j][l] * scale;
          if (m + i * 16 + 8 < p.m) to[m + i * 16 + 8] = sums[i][j][l + 2] * scale;
        }
      }
    }
  }
};

/// f16 and bf16 rows of a: both tiles of a step arrive together, kStages - 1 steps ahead.
template <class Rows, int kColumns, int kTerms>
__device__ __forceinline__ void multiply_plain(TileBlock<Rows, kColumns, kTerms>& block) {
  constexpr int kStages = TileShape<Rows, kColumns, kTerms>::kStages;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < block.steps) {
      block.copy_plain_a(i, i);
      block.copy_b(i, i);
    }
    copy_async_commit();
  }
  int stage = 0, next = kStages - 1;
  for (int step = 0; step < block.steps; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();  // the step's tiles are whole, and the one before is no longer read
    if (step + kStages - 1 < block.steps) {
      block.copy_plain_a(step + kStages - 1, next);
      block.copy_b(step + kStages - 1, next);
    }
    copy_async_commit();
#pragma unroll
    for (int part = 0; part < kTileStep / 16; ++part) block.multiply(block.a_tile(stage), block.b_tile(stage), part);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    next = next + 1 == kStages ? 0 : next + 1;
  }
}

/// The way of quantised rows from a to 16-bit floats in the tile.
template <class Rows, class Block>
struct Dequantizer {
  static constexpr int kStepsPerGroup = Rows::kUnits / 2;
  using Pair = std::conditional_t<Rows::kBrain, __nv_bfloat162, __half2>;

  const Block& block;
  int row;               ///< of which this thread makes all elements of a step, two units
  uint32_t place;        ///< in a tile
  uint32_t low_address;  ///< of the row: the low bits, from which follows where its first chunk begins
  Unit units[2];
  Pair scale[2][2], add[2][2];

  __device__ explicit Dequantizer(const Block& in_block)
      : block(in_block),
        row(static_cast<int>(threadIdx.x)),
        place(tile_place(row, 0)),
        low_address(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(block.a)) +
                    static_cast<uint32_t>(row) * static_cast<uint32_t>(block.p.a_strides[0])) {}

  /// Where a group begins in a row.
  __device__ int group_begin(int group) const {
    return (block.first_step / kStepsPerGroup + group) * Rows::kGroupBytes;
  }
  __device__ uint8_t* staged(int group) const { return block.shared + group % 2 * Rows::kStagedBytes; }
  /// Of the group's part of row r: what comes before it in its first chunk.
  __device__ int offset_of(const std::byte* from) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(from) % kChunkBytes);
  }
  __device__ const std::byte* address(int r, int group) const {
    return block.a + r * block.p.a_strides[0] + group_begin(group);
  }

  /// The chunks that cover a group of all rows; each has a byte of a, so all may be read (devices/cuda/granule.h).
  __device__ void copy_group(int group) const {
    if (group * kStepsPerGroup >= block.steps) return;
    uint8_t* to = staged(group);
    const int row_bytes = block.p.k / (32 * Rows::kUnitsPerBlock) * static_cast<int>(sizeof(typename Rows::Block));
    const int left = row_bytes - group_begin(group);
    const int bytes = left < Rows::kGroupBytes ? left : Rows::kGroupBytes;
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < kTileRows * Rows::kChunks; at += kTileThreads) {
      const int r = at / Rows::kChunks, chunk = at % Rows::kChunks;
      if (block.row + r >= block.p.m) return;
      const std::byte* from = address(r, group);
      const int offset = offset_of(from);
      if (chunk * kChunkBytes >= offset + bytes) continue;
      const std::byte* chunk_from = from - offset + chunk * kChunkBytes;
      uint8_t* chunk_to = to + (r * Rows::kChunks + (chunk ^ chunk_swizzle(Rows::kChunks, r))) * kChunkBytes;
      copy_async_16(chunk_to, chunk_from);
    }
  }

  /// Reads this thread's elements of a step. Units beside each other share bytes: what both need is read once.
  __device__ __forceinline__ void read(int step) {
    const int group = step / kStepsPerGroup;
    const auto first = static_cast<uint32_t>(step % kStepsPerGroup) * 2;
    const StagedRow from{staged(group) + row * Rows::kChunks * kChunkBytes, chunk_swizzle(Rows::kChunks, row),
                         static_cast<int>((low_address + static_cast<uint32_t>(group_begin(group))) % kChunkBytes)};
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t begin = (first + i) / Rows::kUnitsPerBlock * static_cast<uint32_t>(sizeof(typename Rows::Block));
      Rows::read(from, static_cast<int>(begin), (first + i) % Rows::kUnitsPerBlock, units[i]);
      if (((block.first_step + step) * 2 + static_cast<int>(i)) * 32 >= block.p.k) {
        units[i].set_zero(Rows::kOffset);  // b is zero there, but what follows the row might be no numbers
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        scale[i][j] = pair_of_same(units[i].scale[j]);
        if constexpr (Rows::kAdds) add[i][j] = pair_of_same(units[i].add[j]);
      }
    }
  }

  static __device__ Pair pair_of_same(float value) {
    if constexpr (Rows::kBrain) {
      return __float2bfloat162_rn(value);
    } else {
      return __float2half2_rn(value);
    }
  }

  /// Two elements: bytes become 1024 + code as halves, whose bits are 0x6400 + code; or 128 + code as bf16, 0x4300 +
  /// code.
  __device__ __forceinline__ uint32_t convert(int unit, int word, uint32_t selector) const {
    constexpr uint32_t kHigh = Rows::kBrain ? 0x43 : 0x64;
    const int group = word / 4;
    const auto bias = pair_of<Pair>((kHigh << 8) * 0x00010001u + Rows::kOffset * 0x00010001u);
    const uint32_t bytes = __byte_perm(units[unit].codes[word], kHigh * 0x01010101u, selector);
    const Pair difference = __hsub2(pair_of<Pair>(bytes), bias);
    if constexpr (Rows::kAdds) {
      return register_of(__hfma2(difference, scale[unit][group], add[unit][group]));
    } else {
      return register_of(__hmul2(difference, scale[unit][group]));
    }
  }
  /// Writes a quarter of the step's elements, two chunks, into the tile.
  __device__ __forceinline__ void write(uint8_t* tile, int quarter) const {
#pragma unroll
    for (int i = quarter * 2; i < quarter * 2 + 2; ++i) {
      const int unit = i / 4, word = i % 4 * 2;
      uint4 chunk;
      chunk.x = convert(unit, word, 0x4140);
      chunk.y = convert(unit, word, 0x4342);
      chunk.z = convert(unit, word + 1, 0x4140);
      chunk.w = convert(unit, word + 1, 0x4342);
      store_as<uint4>(tile + (place ^ i * kChunkBytes), chunk);
    }
  }
};

/// Quantised rows of a. In step i the tile of step i + 1 is made; b's part of it and the group after the next are on
/// their way, b's first: waiting for all but the latest copies gives a group two steps to arrive.
template <class Rows, int kColumns, int kTerms>
__device__ __forceinline__ void multiply_quantized(TileBlock<Rows, kColumns, kTerms>& block) {
  using Converter = Dequantizer<Rows, TileBlock<Rows, kColumns, kTerms>>;
  Converter rows(block);
  rows.copy_group(0);
  block.copy_b(0, 0);
  copy_async_commit();
  rows.copy_group(1);
  copy_async_commit();
  copy_async_wait<1>();
  __syncthreads();
  rows.read(0);
#pragma unroll
  for (int i = 0; i < 4; ++i) rows.write(block.a_tile(0), i);
  for (int step = 0; step < block.steps; ++step) {
    const int now = step % 2, next = 1 - now;
    __syncthreads();  // the step's tiles are whole, and the others are no longer read
    const bool more = step + 1 < block.steps;
    if (more) block.copy_b(step + 1, next);
    copy_async_commit();
    if (more && (step + 1) % Converter::kStepsPerGroup == 0) {
      rows.copy_group((step + 1) / Converter::kStepsPerGroup + 1);
    }
    copy_async_commit();
    // After the last step whatever is there, unused. The first products are queued before the blocks are read.
    block.multiply(block.a_tile(now), block.b_tile(now), 0);
    rows.read(step + 1);
#pragma unroll
    for (int part = 1; part < kTileStep / 16; ++part) {
      rows.write(block.a_tile(next), part - 1);
      block.multiply(block.a_tile(now), block.b_tile(now), part);
    }
    rows.write(block.a_tile(next), kTileStep / 16 - 1);
    copy_async_wait<1>();
  }
}

template <class Rows, int kColumns, int kTerms>
__global__ void __launch_bounds__(kTileThreads, (TileShape<Rows, kColumns, kTerms>::kBlocksPerProcessor))
    tile_product(const TileProduct product) {
  SHOAL_DYNAMIC_SHARED(uint8_t, shared);
  TileBlock<Rows, kColumns, kTerms> block(product, shared, static_cast<int>(blockIdx.x));
  if constexpr (Rows::kPlain) {
    multiply_plain(block);
  } else {
    multiply_quantized(block);
  }
  copy_async_wait<0>();
  block.store();
}

}  // namespace shoal::cuda
