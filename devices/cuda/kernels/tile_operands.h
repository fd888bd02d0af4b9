// Common code of the tile products with mma (tile_product.h) and with wgmma (wgmma_product.h). This code divides a
// product among blocks, copies operands to shared memory and stores results.
//
// The columns of b are already converted (tile_columns.h). Each column is stored as one row per term. A row consists of
// k 16-bit elements and is padded to whole steps (64 elements of k).
//
// Quantised rows of `a` pass through shared memory twice. First, their blocks are copied without conversion into
// staging buffers for two groups. A group is 128 or 256 elements of each row. Then, one step before the elements are
// multiplied, each thread reads 32 or 64 elements of a row (tile_formats.h) and writes them to the tile as halves or
// bf16. f16 and bf16 rows are copied directly into the tile.
//
// A row of a tile has 64 halves, which are eight chunks of 16 bytes. Row r stores its chunk c at position c ^ (r % 8).
// wgmma.h calls this layout Swizzle::k128. In this layout, the chunks that a warp accesses together are in different
// banks. This is true for matrix loads, for copies, and for eight threads that access eight different rows.
#pragma once

#include <climits>
#include <cstring>
#include <type_traits>

#include "devices/cuda/kernels/activations.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/tile_formats.h"
#include "devices/cuda/ops/mul_mat_fused.h"

namespace shoal::cuda {

inline constexpr int kTileRows = 128;
inline constexpr int kTileStep = 64;
inline constexpr int kTileRowBytes = kTileStep * 2;

inline constexpr int kTileMatrices = 3;

/// One matrix `a` of a launch, with its results and tiles.
struct TileMatrix {
  const std::byte* a = nullptr;
  int64_t a_strides[3]{};             ///< strides of rows, axis 2 and axis 3, in bytes
  unsigned shared2 = 1, shared3 = 1;  ///< number of matrices of b that use the same matrix `a`, along axes 2 and 3
  float* c = nullptr;
  int64_t c_strides[3]{};  ///< strides of columns, axis 2 and axis 3, in elements
  const float* addend = nullptr;
  int64_t addend_strides[3]{};  ///< like c_strides; a stride of 0 broadcasts
  int64_t sums_at = 0;          ///< index of this matrix's first sum in TileProduct::sums
  int m = 0;
  unsigned row_tiles = 1;
  unsigned first_block = UINT_MAX;
};

struct TileProduct {
  TileMatrix matrices[kTileMatrices];
  const uint16_t* b = nullptr;      ///< [axis 3][axis 2][n][term][k_padded]
  const float* b_scales = nullptr;  ///< [axis 3][axis 2][n]: factors of the sums; nullptr: all factors are 1
  /// A second matrix with the layout of matrices[0]: c = act(a b) * (up b). If `up` is set, the launch uses only the
  /// first element of `matrices`, and rows 64 to 127 of a tile are rows of `up`.
  const std::byte* up = nullptr;
  GluKind glu = GluKind::kSwiglu;
  bool is_constant = false;  ///< true if no queued work writes `a` or `up`

  /// The scaled sums, if k is divided into several parts (splits). Each split has its own sums. The sums of a matrix
  /// begin at TileMatrix::sums_at and have the order [axis 3][axis 2][n][a or up][m].
  float* sums = nullptr;
  int64_t split_stride = 0;  ///< stride of the splits in `sums`, in elements
  // Element counts fit in 31 bits; addresses of elements are computed in 64 bits.
  int n = 0, k = 0, k_padded = 0;
  unsigned rows = 0;      ///< number of rows of c, over all axes
  unsigned batches2 = 1;  ///< size of c's axis 2
  unsigned column_tiles = 1;
  unsigned splits = 1;
  int steps_per_split = 1;  ///< number of steps per split; a multiple of TileKernels::steps_per_group if there are
                            ///< several splits

  /// These pointers are set for mul_mat_id and nullptr for mul_mat. The columns of b are sorted by group. Each tile of
  /// columns belongs to one group, so there are at most column_tiles groups. Column i of b produces the result of the
  /// (expert slot, token) pair with the index order[i]. ColumnGroup::matrix is an index on axis 2 of `a`.
  const ColumnGroup* groups = nullptr;
  const int32_t *group_count = nullptr, *order = nullptr;
  int slots = 1;

  __device__ const TileMatrix& matrix_of_block(unsigned block) const {
    return matrices[block >= matrices[2].first_block ? 2 : block >= matrices[1].first_block ? 1 : 0];
  }
};

/// Rows of f16 (PlainHalf) or bf16 (PlainBf16).
struct PlainHalf {
  static constexpr bool kPlain = true, kBf16 = false;
};
struct PlainBf16 {
  static constexpr bool kPlain = true, kBf16 = true;
};
/// Quantised rows in a format F of tile_formats.h.
template <class F>
struct Dequantized : F {
  static constexpr bool kPlain = false;
  static constexpr int kGroupBytes = F::kBlocksPerGroup * static_cast<int>(sizeof(typename F::Block));
  static constexpr int kUnits = F::kBlocksPerGroup * F::kUnitsPerBlock;  ///< number of units (32 elements) per group
  static constexpr int kBefore =
      F::kAligned ? 0 : kChunkBytes - static_cast<int>(alignof(typename F::Block));  ///< largest number of bytes that
                                                                                     ///< precede the group in its first
                                                                                     ///< chunk
  static constexpr int kChunks = (kGroupBytes + kBefore + kChunkBytes - 1) / kChunkBytes;
  static constexpr int kStagedBytes = kTileRows * kChunks * kChunkBytes;  ///< bytes of a staging buffer: one group of
                                                                          ///< each row
};

template <class Rows>
constexpr int staged_bytes() {
  if constexpr (Rows::kPlain) {
    return 0;
  } else {
    return Rows::kStagedBytes;
  }
}

__device__ inline uint32_t tile_place(uint32_t row, uint32_t chunk) {
  return row * kTileRowBytes + (chunk ^ row % 8) * kChunkBytes;
}

/// These functions convert between two halves (or bf16) and the register that contains them.
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

/// The part of a product that a block computes: a tile of c, over some steps of k.
struct TilePart {
  const TileProduct& p;
  const TileMatrix& matrix;
  int row, column;  ///< first row and column of the tile
  int rows_left, columns_left;
  int64_t row_stride;  ///< stride of the rows of `a`, in bytes
  unsigned batch, split;
  bool exists = true, is_zero = false;
  const std::byte* a;  ///< address of the tile's first row in `a`
  const uint16_t* b;   ///< address of the tile's first column in b
  int first_step, steps;
  int64_t to_up = 0;  ///< number of bytes from a + r * row_stride to the tile's row r, if this row is a row of `up`

  __device__ TilePart(const TileProduct& product, unsigned block, int columns, int terms)
      : p(product), matrix(product.matrix_of_block(block)) {
    block -= matrix.first_block;
    const unsigned column_tile = block % p.column_tiles;
    column = static_cast<int>(column_tile) * columns;
    columns_left = p.n - column;
    block /= p.column_tiles;  // consecutive blocks read the same rows of `a` at the same time
    row = static_cast<int>(block % matrix.row_tiles) * (p.up == nullptr ? kTileRows : kTileRows / 2);
    block /= matrix.row_tiles;
    rows_left = matrix.m - row;
    row_stride = matrix.a_strides[0];
    split = block % p.splits;
    batch = block / p.splits;
    if (p.up != nullptr) to_up = p.up - matrix.a - kTileRows / 2 * matrix.a_strides[0];
    a = matrix.a + row * matrix.a_strides[0];
    if (batch > 0) {
      a += batch % p.batches2 / matrix.shared2 * matrix.a_strides[1] +
           batch / p.batches2 / matrix.shared3 * matrix.a_strides[2];
    }
    if (p.groups != nullptr) take_group(static_cast<int>(column_tile));
    b = p.b + (static_cast<int64_t>(batch) * p.n + column) * terms * p.k_padded;
    const int all = p.k_padded / kTileStep;
    first_step = static_cast<int>(split) * p.steps_per_split;
    steps = all - first_step < p.steps_per_split ? all - first_step : p.steps_per_split;
  }

  __device__ void take_group(int index) {
    exists = index < *p.group_count;
    if (!exists) return;
    const ColumnGroup group = p.groups[index];
    column = group.first;
    columns_left = group.count;
    is_zero = group.matrix < 0;
    a += (is_zero ? 0 : group.matrix) * matrix.a_strides[1];
  }
  /// Address of the results of the tile's first column, for products without splits.
  __device__ float* results() const {
    float* c = matrix.c;
    if (batch > 0) c += batch % p.batches2 * matrix.c_strides[1] + batch / p.batches2 * matrix.c_strides[2];
    return c + column * matrix.c_strides[0];
  }
  /// Returns the address of the results for column n of the tile. The column belongs to an (expert slot, token) pair.
  __device__ float* result_of_pair(int n) const {
    const unsigned pair = p.order[column + n], slots = p.slots;
    return matrix.c + pair % slots * matrix.c_strides[0] + pair / slots * matrix.c_strides[1];
  }

  /// Returns 0 if row r is a row of `a`. Otherwise returns the index of the tile's first row of `up`.
  __device__ int up_row(int r) const { return p.up != nullptr && r >= kTileRows / 2 ? kTileRows / 2 : 0; }
  __device__ const std::byte* address_of_row(int r) const { return a + r * row_stride + (up_row(r) > 0 ? to_up : 0); }
  /// Returns the address of row r + rows. `address` is the address of row r; kTileRows / 2 is a multiple of `rows`.
  __device__ const std::byte* next_row(const std::byte* address, int r, int rows) const {
    return address + rows * row_stride + (r + rows == kTileRows / 2 ? to_up : 0);
  }
  __device__ int index_of_row(int r) const { return row + r - up_row(r); }
  __device__ bool has_row(int r) const { return r - up_row(r) < rows_left; }

  /// For one step of k, starts to copy the columns of b into one tile per term. Columns that do not exist become zeros.
  template <int kThreads, int kColumns, int kTerms>
  __device__ void copy_b(int step, uint8_t* tiles) const {
    constexpr int kRows = kThreads / 8 / kTerms;  // number of columns of b that all threads together copy at a time
    static_assert(kColumns % kRows == 0);
    const int chunk = static_cast<int>(threadIdx.x) % 8, r = static_cast<int>(threadIdx.x) / 8;
    const int term = r % kTerms, n = r / kTerms;
    const uint16_t* from = b + static_cast<int64_t>(r) * p.k_padded + (first_step + step) * kTileStep + chunk * 8;
    uint8_t* to = tiles + term * kColumns * kTileRowBytes + tile_place(n, chunk);
    const int left = columns_left - n;
#pragma unroll
    for (int i = 0; i < kColumns / kRows; ++i) {
      const bool valid = i * kRows < left;
      copy_async_16(to + i * kRows * kTileRowBytes, from, valid);
      from += static_cast<int64_t>(kRows * kTerms) * p.k_padded;
    }
  }

  /// For one step of k, starts to copy the f16 or bf16 rows of `a` into a tile. Rows that do not exist and elements
  /// past k become zeros. k is a multiple of 8.
  template <int kThreads>
  __device__ void copy_plain_a(int step, uint8_t* tile) const {
    constexpr int kRows = kThreads / 8;  // number of rows that all threads together copy at a time
    const int chunk = static_cast<int>(threadIdx.x) % 8, first = static_cast<int>(threadIdx.x) / 8;
    const int begin = (first_step + step) * kTileStep + chunk * 8;
    const std::byte* from = address_of_row(first) + begin * 2;
    uint8_t* to = tile + tile_place(first, chunk);
    const int left = begin < p.k ? rows_left - first : 0;
#pragma unroll
    for (int r = 0; r < kTileRows; r += kRows) {
      copy_async_16(to + r * kTileRowBytes, from, r - up_row(r) < left);
      from = next_row(from, r, kRows);
    }
  }
};

/// Applies the activation and the addend to a sum. `batch` is the index of a matrix of c.
__device__ inline float joined(const TileProduct& p, const TileMatrix& matrix, float sum, float up, int row, int column,
                               unsigned batch) {
  if (p.up != nullptr) sum = activate_gate(p.glu, sum) * up;
  if (matrix.addend != nullptr) {
    sum += matrix.addend[row + column * matrix.addend_strides[0] + batch % p.batches2 * matrix.addend_strides[1] +
                         batch / p.batches2 * matrix.addend_strides[2]];
  }
  return sum;
}

/// Stride of the columns of a tile's sums in shared memory: row r of column n is at n * kSumsPitch + r. A warp writes
/// four columns of eight rows at a time. With this stride, these 32 sums are in different banks. store_tile() copies
/// the sums from shared memory to global memory.
inline constexpr int kSumsPitch = kTileRows + 4;
constexpr int sums_bytes(int columns) {
  return columns * kSumsPitch * static_cast<int>(sizeof(float));
}

template <int kThreads, int kColumns>
__device__ void store_tile(const TilePart& part, const float* sums) {
  const TileProduct& p = part.p;
  const TileMatrix& matrix = part.matrix;
  const bool whole = p.splits == 1, joins = whole && (p.up != nullptr || matrix.addend != nullptr);
  const int rows = whole && p.up != nullptr ? kTileRows / 2 : kTileRows, step = kThreads / rows;
  const int r = static_cast<int>(threadIdx.x) % rows, first = static_cast<int>(threadIdx.x) / rows;
  if (!part.has_row(r)) return;
  const int columns = part.columns_left < kColumns ? part.columns_left : kColumns, row = part.index_of_row(r);
  const int64_t index = static_cast<int64_t>(part.batch) * p.n + part.column;
  const auto scale_of = [&](int n) { return p.b_scales == nullptr ? 1 : p.b_scales[index + n]; };
  sums += r;
  if (joins || p.groups != nullptr) {
#pragma unroll 1
    for (int n = first; n < columns; n += step) {
      const float* from = sums + n * kSumsPitch;
      const float scale = scale_of(n), up = p.up == nullptr ? 0 : from[kTileRows / 2] * scale;
      float* to = p.groups == nullptr ? part.results() + n * matrix.c_strides[0] : part.result_of_pair(n);
      to[row] = joined(p, matrix, *from * scale, up, row, part.column + n, part.batch);
    }
    return;
  }
  const int sums_rows = matrix.m * (p.up == nullptr ? 1 : 2);
  const int64_t stride = whole ? matrix.c_strides[0] : sums_rows;
  float* to = whole ? part.results() : p.sums + part.split * p.split_stride + matrix.sums_at + index * sums_rows;
  to += row + (part.up_row(r) > 0 ? matrix.m : 0) + first * stride;
#pragma unroll 4
  for (int n = first; n < columns; n += step, to += step * stride) *to = sums[n * kSumsPitch] * scale_of(n);
}

/// Stores zeros as the results of a part with `is_zero`.
template <int kThreads>
__device__ void store_zeros(const TilePart& part) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * part.columns_left; i += kThreads) {
    const int r = i % kTileRows;
    if (part.has_row(r)) part.result_of_pair(i / kTileRows)[part.index_of_row(r)] = 0;
  }
}

/// Converts quantised rows of `a` to 16-bit floats in the tile.
template <class Rows, int kThreads>
struct Dequantizer {
  static constexpr int kStepsPerGroup = Rows::kUnits / 2;
  static constexpr int kUnits = 2 * kTileRows / kThreads;  ///< number of units per thread and step
  using Pair = std::conditional_t<Rows::kBf16, __nv_bfloat162, __half2>;

  const TilePart& part;
  uint8_t* staging;      ///< staging buffers of two groups
  int row, first_unit;   ///< row and first unit that this thread converts; with 256 threads, each warpgroup converts
                         ///< its own 64 rows
  uint32_t place;        ///< offset of the first unit in a tile, in bytes
  uint32_t low_address;  ///< low 32 bits of the row's address; read() computes offsets in chunks from these bits
  Unit32 units[kUnits];
  Pair scale[kUnits][2], add[kUnits][2];

  __device__ Dequantizer(const TilePart& in_part, uint8_t* memory) : part(in_part), staging(memory) {
    const int thread = static_cast<int>(threadIdx.x);
    row = kUnits == 2 ? thread : thread / 32 * 16 + thread % 16;
    first_unit = kUnits == 2 ? 0 : thread / 16 % 2;
    place = tile_place(row, first_unit * 4);
    low_address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(part.address_of_row(row)));
  }

  /// Byte offset of a group from the start of a row.
  __device__ int group_begin(int group) const { return (part.first_step / kStepsPerGroup + group) * Rows::kGroupBytes; }
  __device__ uint8_t* staged(int group) const { return staging + group % 2 * Rows::kStagedBytes; }

  /// Starts to copy the chunks that cover one group of each row. Each chunk contains at least one byte of `a`, so
  /// reading the whole chunk is safe (devices/cuda/granule.h). Four threads copy a row.
  __device__ void copy_group(int group) const {
    if (group * kStepsPerGroup >= part.steps) return;
    constexpr int kPerRow = 4, kRows = kThreads / kPerRow;
    const int row_bytes = part.p.k / (32 * Rows::kUnitsPerBlock) * static_cast<int>(sizeof(typename Rows::Block));
    const int left = row_bytes - group_begin(group);
    const int bytes = left < Rows::kGroupBytes ? left : Rows::kGroupBytes;
    const int first_chunk = static_cast<int>(threadIdx.x) % kPerRow, first = static_cast<int>(threadIdx.x) / kPerRow;
    const std::byte* address = part.address_of_row(first) + group_begin(group);
#pragma unroll
    for (int i = 0; i < kTileRows; i += kRows) {
      const int offset = static_cast<int>(reinterpret_cast<uintptr_t>(address) % kChunkBytes);
      const std::byte* from = address - offset;
      address = part.next_row(address, i, kRows);
      const int r = first + i;
      if (!part.has_row(r)) continue;
      uint8_t* to = staged(group) + r * Rows::kChunks * kChunkBytes;
#pragma unroll
      for (int j = 0; j < Rows::kChunks; j += kPerRow) {
        const int chunk = j + first_chunk;
        if (chunk * kChunkBytes >= offset + bytes) break;
        copy_async_16(to + (chunk ^ chunk_swizzle(Rows::kChunks, r)) * kChunkBytes, from + chunk * kChunkBytes);
      }
    }
  }

  /// Reads this thread's elements of a step. Neighbouring units share bytes. The compiled code loads these bytes only
  /// once.
  __device__ __forceinline__ void read(int step) {
    const int group = step / kStepsPerGroup;
    const auto first = static_cast<uint32_t>(step % kStepsPerGroup * 2 + first_unit);
    const StagedRow from{staged(group) + row * Rows::kChunks * kChunkBytes, chunk_swizzle(Rows::kChunks, row),
                         static_cast<int>((low_address + static_cast<uint32_t>(group_begin(group))) % kChunkBytes)};
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      const uint32_t begin = (first + i) / Rows::kUnitsPerBlock * static_cast<uint32_t>(sizeof(typename Rows::Block));
      Rows::read(from, static_cast<int>(begin), (first + i) % Rows::kUnitsPerBlock, units[i]);
      if (((part.first_step + step) * 2 + first_unit + static_cast<int>(i)) * 32 >= part.p.k) {
        units[i].set_zero(Rows::kOffset);  // past k, b is zero, but the bytes after the row might decode to NaN
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        scale[i][j] = pair_of_same(units[i].scale[j]);
        if constexpr (Rows::kAdds) add[i][j] = pair_of_same(units[i].add[j]);
      }
    }
  }

  static __device__ Pair pair_of_same(float value) {
    if constexpr (Rows::kBf16) {
      return __float2bfloat162_rn(value);
    } else {
      return __float2half2_rn(value);
    }
  }

  /// Converts two elements. The byte of a code becomes the half 1024 + code (bits 0x6400 + code) or the bf16 128 + code
  /// (bits 0x4300 + code). Then the bias is subtracted, and the scaling is applied.
  __device__ __forceinline__ uint32_t convert(int unit, int word, uint32_t selector) const {
    constexpr uint32_t kHigh = Rows::kBf16 ? 0x43 : 0x64;
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
  /// Writes 16 of this thread's elements (two chunks) into the tile; `part_of_units` < kParts.
  static constexpr int kParts = 2 * kUnits;
  __device__ __forceinline__ void write(uint8_t* tile, int part_of_units) const {
#pragma unroll
    for (int i = part_of_units * 2; i < part_of_units * 2 + 2; ++i) {
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

}  // namespace shoal::cuda
