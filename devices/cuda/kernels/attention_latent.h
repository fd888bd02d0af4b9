// Attention on tensor cores for keys whose first elements are also the values, as in latent attention. Keys have up to
// 576 columns, and values up to 512. Each KV row is read once, as key and as value.
//
// Eight warps share 16 query rows and a tile of 64 keys. One whole tile is in shared memory while the next tile is
// copied. In the product of queries and keys, each warp processes 32 keys and a quarter of the columns. The warp keeps
// its columns of the queries in registers. In the soft-max, each warp processes two rows. In the sum of weighted
// values, each warp processes 64 columns. These phases pass products and weights to each other in shared memory.
// Precision is as in attention_tiles.h: K is exact in 16 bits, queries and weights are sums of two 16-bit floats, and
// tensor cores add at most 288 products of a score or 128 products of a value in sequence.
#pragma once

#include "devices/cuda/kernels/attention_merge.h"
#include "devices/cuda/kernels/attention_parts.h"

namespace shoal::cuda::attention {

inline constexpr int kLatentWarps = 8, kLatentThreads = kLatentWarps * 32;  ///< numbers of warps and threads per block
inline constexpr int kLatentRows = 16;                                      ///< number of rows per block
inline constexpr int kLatentMostKeys = 576, kLatentMostValues = 512;        ///< largest numbers of columns of K and V
inline constexpr int kLatentPitch = kLatentMostKeys + 8;  ///< elements per row; + 8 puts neighbouring rows in different
                                                          ///< banks
/// Number of quarters of the columns, and number of steps (16 columns each) per quarter.
inline constexpr int kLatentQuarters = 4, kLatentSteps = kLatentMostKeys / 16 / kLatentQuarters;

/// Byte offsets in a block's shared memory. The products overwrite the queries after the queries have been loaded into
/// registers.
struct LatentLayout {
  static constexpr int kTileBytes = kKeys * kLatentPitch * 2, kQueryBytes = kLatentRows * kLatentPitch * 2;
  static constexpr int kProductPitch = kKeys + 8, kWeightPitch = kKeys + 8;  // in elements
  static constexpr int kProductBytes = kLatentQuarters * kLatentRows * kProductPitch * 4;
  static constexpr int kWeightBytes = kLatentRows * kWeightPitch * 2;
  static constexpr int kQueriesAt = 2 * kTileBytes, kProductsAt = kQueriesAt;
  static constexpr int kWeightsAt = kProductsAt + kProductBytes;
  static constexpr int kFactsAt = kQueriesAt + 2 * kQueryBytes;
  static constexpr int kMarksAt = kFactsAt + kLatentRows * static_cast<int>(sizeof(RowFacts));
  static constexpr int kRowsAt = kMarksAt + kKeys * 4;  ///< [3][row]: factor for sums from earlier tiles; largest score
                                                        ///< and sum of the segment
  static constexpr int kKeyRowsAt = kRowsAt + 3 * kLatentRows * 4;
  static constexpr int kBytes = kKeyRowsAt + static_cast<int>(sizeof(KeyRows));
  static_assert(kWeightsAt + 2 * kWeightBytes <= kFactsAt && kLatentWarps * kMergeFloats * 4 <= kTileBytes);
};

template <bool kF16>
struct LatentBlock {
  static constexpr float kLift = kF16 ? 6.931471805599453f : 0;  ///< ln(1024): scales weights up by 1024, because f16
                                                                 ///< cannot represent small weights
  static constexpr float kLower = kF16 ? 1.0f / 1024 : 1;
  static constexpr int kColumns = kLatentMostValues / kLatentWarps;

  const Arguments& a;
  std::byte* shared;
  const std::byte* keys;  ///< K of this KV head
  int warp, lane;
  uint32_t q_high[kLatentSteps][4], q_low[kLatentSteps][4];
  float top = kMinusInfinity, sum = 0;  ///< for the lane's row in the soft-max: `top` is the largest score; `sum` is
                                        ///< the sum of the weights of the lane's keys
  TwoRows<kColumns / 8> segment;        ///< sums of the current segment
  Totals totals;                        ///< of the segments before it

  __device__ LatentBlock(const Arguments& a, std::byte* shared, const Place& place)
      : a(a),
        shared(shared),
        keys(a.k.data + place.kv_head * a.k.head + place.batch * a.k.batch),
        warp(static_cast<int>(kept(threadIdx.x)) / 32),
        lane(static_cast<int>(kept(threadIdx.x)) % 32) {}

  __device__ uint16_t* tile_at(int tile) const {
    return reinterpret_cast<uint16_t*>(shared + tile % 2 * LatentLayout::kTileBytes);
  }
  __device__ float* products(int quarter, int row) const {
    auto* from = reinterpret_cast<float*>(shared + LatentLayout::kProductsAt);
    return from + (quarter * kLatentRows + row) * LatentLayout::kProductPitch;
  }
  __device__ uint16_t* weights(int part) const {
    return reinterpret_cast<uint16_t*>(shared + LatentLayout::kWeightsAt + part * LatentLayout::kWeightBytes);
  }
  __device__ const RowFacts* facts() const { return reinterpret_cast<RowFacts*>(shared + LatentLayout::kFactsAt); }
  __device__ int* marks() const { return reinterpret_cast<int*>(shared + LatentLayout::kMarksAt); }
  __device__ KeyRows& key_rows() const { return *reinterpret_cast<KeyRows*>(shared + LatentLayout::kKeyRowsAt); }
  __device__ float* rows(int which) const {
    return reinterpret_cast<float*>(shared + LatentLayout::kRowsAt) + which * kLatentRows;
  }

  /// Starts to copy a tile. Keys without a row become zeros. The padding of the columns to a multiple of 16 also
  /// becomes zeros.
  __device__ void fetch(int tile) const {
    const int chunks = (a.d + 15) / 16 * 2;
    for (int row = warp; row < kKeys; row += kLatentWarps) {
      const int stored = key_rows().of(tile)[row];
      const bool exists = stored >= 0;
      const std::byte* from = exists ? keys + stored * a.k.row : keys;
      uint16_t* const to = tile_at(tile) + row * kLatentPitch;
      for (int chunk = lane; chunk < chunks; chunk += 32) {
        const bool valid = exists && chunk * 8 < a.d;
        copy_async_16(to + chunk * 8, valid ? from + chunk * 16 : keys, valid);
      }
    }
  }

  __device__ int first_column() const { return warp / 2 * kLatentSteps * 16; }
  __device__ int first_key() const { return warp % 2 * (kKeys / 2); }

  /// Loads the warp's columns of the queries from shared memory into registers.
  __device__ void take_queries(const uint16_t* high, const uint16_t* low) {
    const int at = lane % 16 * kLatentPitch + lane / 16 * 8 + first_column();
#pragma unroll
    for (int step = 0; step < kLatentSteps; ++step) {
      if (first_column() + step * 16 >= a.d) break;
      load_matrix_x4(q_high[step], high + at + step * 16);
      load_matrix_x4(q_low[step], low + at + step * 16);
    }
  }

  __device__ void multiply_keys(int tile) const {
    constexpr int kTiles = kKeys / 2 / 8;
    float sums[kTiles][4] = {};
    const uint16_t* from =
        tile_at(tile) + (first_key() + lane / 16 * 8 + lane % 8) * kLatentPitch + lane / 8 % 2 * 8 + first_column();
#pragma unroll
    for (int step = 0; step < kLatentSteps; ++step) {
      if (first_column() + step * 16 >= a.d) break;
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        uint32_t k[4];
        load_matrix_x4(k, from + n * 8 * kLatentPitch + step * 16);
        multiply_split<kF16>(sums[n], sums[n + 1], q_high[step], q_low[step], k);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int column = first_key() + n * 8 + lane % 4 * 2;
      store_as<float2>(products(warp / 2, lane / 4) + column, float2{sums[n][0], sums[n][1]});
      store_as<float2>(products(warp / 2, lane / 4 + 8) + column, float2{sums[n][2], sums[n][3]});
    }
  }

  /// Returns the lane's row in the soft-max. Sixteen lanes share a row, and each lane processes four of the tile's
  /// keys.
  __device__ int soft_max_row() const {
    return warp * 2 + lane / 16;
  }

  /// Converts products to weights, scaled by exp(kLift). `whole`: all rows see all keys of the tile.
  __device__ void soft_max(int tile, bool whole) {
    const int row = soft_max_row(), first = lane % 16 * 4;
    const RowFacts& fact = facts()[row];
    float scores[4] = {};
#pragma unroll
    for (int quarter = 0; quarter < kLatentQuarters; ++quarter) {
      const auto part = load_as<float4>(products(quarter, row) + first);
      scores[0] += part.x, scores[1] += part.y, scores[2] += part.z, scores[3] += part.w;
    }
    float largest = top;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] = soft_cap(a, __fmul_rn(scores[i], fact.factor));
      if (!whole) hide(tile * kKeys + first + i, fact, scores[i], marks()[first + i], tile);
      largest = fmaxf(largest, scores[i]);
    }
    for (int lanes = 8; lanes > 0; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    const float base = largest == kMinusInfinity ? 0 : largest, keep = __expf(top - base);
    top = largest;
    float added = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[i] = __expf(scores[i] - base + kLift);
      added += scores[i];
    }
    sum = fmaf(sum, keep, added);
    const Split left = split<kF16>(scores[0], scores[1]), right = split<kF16>(scores[2], scores[3]);
    const int at = row * LatentLayout::kWeightPitch + first;
    store_as<uint2>(weights(0) + at, uint2{left.high, right.high});
    store_as<uint2>(weights(1) + at, uint2{left.low, right.low});
    if (lane % 16 == 0) rows(0)[row] = keep;
  }
  __device__ void hide(int key, const RowFacts& row, float& score, int& mark, int tile) const {
    const bool in_range = key >= row.begin && key < row.end && key_rows().of(tile)[key % kKeys] >= 0;
    if (!in_range) score = kMinusInfinity;
    if (in_range && a.mask != nullptr) score = add_mask(a, row.query, key, score);
    if (score != kMinusInfinity) mark = tile;
  }

  /// Zeroes the tile's keys that no row of the block sees, because 0 * NaN would make the sums of values NaN.
  __device__ void clear_unseen(int tile) const {
    for (int row = warp; row < kKeys; row += kLatentWarps) {
      if (marks()[row] == tile) continue;
      for (int chunk = lane; chunk < kLatentPitch / 8; chunk += 32) {
        store_as<uint4>(tile_at(tile) + row * kLatentPitch + chunk * 8, uint4{0, 0, 0, 0});
      }
    }
  }

  /// Adds the tile's weighted values to the segment, for the warp's columns.
  __device__ void weigh(int tile) {
    const int first = warp * kColumns, row = lane % 16, half = lane / 16 * 8;
    float sums[kColumns / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t high[4], low[4];
      const int at = row * LatentLayout::kWeightPitch + half + step * 16;
      load_matrix_x4(high, weights(0) + at);
      load_matrix_x4(low, weights(1) + at);
      const uint16_t* from = tile_at(tile) + (step * 16 + row) * kLatentPitch + half + first;
#pragma unroll
      for (int group = 0; group < kColumns / 16; ++group) {
        if (first + group * 16 >= a.e) break;
        uint32_t v[4];
        load_matrix_x4_trans(v, from + group * 16);
        multiply_split<kF16>(sums[2 * group], sums[2 * group + 1], high, low, v);
      }
    }
    const float keep[2] = {rows(0)[lane / 4], rows(0)[lane / 4 + 8]};
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) segment.values[n][i] = fmaf(segment.values[n][i], keep[i / 2], sums[n][i]);
    }
  }

  /// All threads of the block call end_segment() after the last tile of a segment. The rows' largest scores and sums
  /// are passed to all warps.
  __device__ void end_segment(const Work& work, int index) {
    const Span span{lane, 0, warp * kColumns, min((warp + 1) * kColumns, a.e), warp == 0};
    for (int lanes = 8; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (lane % 16 == 0) rows(1)[soft_max_row()] = top, rows(2)[soft_max_row()] = sum;
    top = kMinusInfinity, sum = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) segment.top[i] = rows(1)[span.row(i)], segment.sum[i] = rows(2)[span.row(i)];
    segment.multiply(kLower);
    segment.end(a, work, span, totals, index);
  }
};

template <bool kF16>
__device__ inline void compute_latent(const Arguments& a, const Work& work, std::byte* shared) {
  LatentBlock<kF16> block(a, shared, work.place);
  KeyRows& key_rows = block.key_rows();
  key_rows.start(a, work);
  if (!work.share.tiles.empty()) block.fetch(work.share.tiles.begin);
  copy_async_commit();
  auto* high = reinterpret_cast<uint16_t*>(shared + LatentLayout::kQueriesAt);
  auto* low = high + kLatentRows * kLatentPitch;
  auto* facts = reinterpret_cast<RowFacts*>(shared + LatentLayout::kFactsAt);
  load_queries<kF16, kLatentWarps, kLatentMostKeys>(a, work.place, kLatentRows, kLatentPitch, a.scale, high, low,
                                                    facts);
  if (threadIdx.x < kKeys) block.marks()[threadIdx.x] = -1;
  __syncthreads();
  block.take_queries(high, low);

  const bool gaps = a.mask != nullptr || a.window > 0;
  int segment = work.share.segments.begin;
#pragma unroll 1
  do {  // also runs if no KV row is visible
    const Range tiles = work.share.tiles_of(segment);
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      copy_async_wait<0>();
      __syncthreads();  // the tile has arrived; the previous tile and the queries are no longer read
      if (tile + 1 < work.share.tiles.end) block.fetch(tile + 1);
      copy_async_commit();
      const int row_of_key = KeyRows::find(a, work, tile + 2);
      block.multiply_keys(tile);
      __syncthreads();
      const bool whole = work.sees_whole(a, tile) && !key_rows.has_missing(tile);
      block.soft_max(tile, whole);
      __syncthreads();
      if (gaps && !whole) {
        block.clear_unseen(tile);
        __syncthreads();
      }
      block.weigh(tile);
      key_rows.store(tile + 2, row_of_key);
    }
    block.end_segment(work, segment);
  } while (++segment < work.share.segments.end);
  copy_async_wait<0>();
  end_rows<kLatentWarps>(a, work, {0, a.e}, reinterpret_cast<float*>(shared));
}

template <bool kF16>
__global__ void __launch_bounds__(kLatentThreads, 1) attention_latent(const Arguments a) {
  SHOAL_DYNAMIC_SHARED(std::byte, shared);
  __shared__ Work work;
  let_next_start();
  wait_for_previous();
  for_places(a, [&](const Place& place) {
    if (start_work(a, place, work)) compute_latent<kF16>(a, work, shared);
  });
}

}  // namespace shoal::cuda::attention
