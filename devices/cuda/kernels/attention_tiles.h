// Attention on tensor cores, for prompts and for decoding, with K and V in f16, bf16 or q8_0.
//
// A block of four warps takes 64 rows, 16 for each warp (kRowWarps = 4), or 16 rows that all warps share, each with a
// quarter of every KV tile (kRowWarps = 1); the latter join their results at the end. A warp multiplies its queries
// with a tile's keys, updates its running soft-max (Milakov and Gimelshein 2018, arXiv:1805.02867) and multiplies the
// weights, which are in registers already as the next product takes them, with the tile's values.
//
// K and V are exact as 16-bit floats (q8_0 as integers, whose scales are applied to f32 numbers). Queries and weights
// are sums of two. docs/cuda_attention.md tells why, and why only one KV tile is summed by tensor cores.
#pragma once

#include "devices/cuda/kernels/attention_merge.h"
#include "devices/cuda/kernels/attention_parts.h"
#include "devices/cuda/kernels/attention_stage.h"

namespace shoal::cuda::attention {

/// Where things lie in a block's shared memory. Partial results of warps take the place of the rest at the end.
template <KvType kK, KvType kV, int kD, int kRowWarps>
struct Layout {
  using Keys = Stage<kK, kD, true>;
  using Values = Stage<kV, kD, false>;
  static constexpr int kRows = 16 * kRowWarps;
  static constexpr size_t kQueryBytes = kRows * kPitch<kD> * 2;
  static constexpr size_t kKeysAt = 2 * kQueryBytes, kValuesAt = kKeysAt + Keys::kBytes;
  static constexpr size_t kFactsAt = kValuesAt + Values::kBytes, kSeenAt = kFactsAt + kRows * sizeof(RowFacts);
  static constexpr size_t kBytes = kSeenAt + kKeys * 4;
  static_assert(kRowWarps == 4 || 4 * 16 * (kD + 2) * 4 <= kFactsAt);
  static_assert(kWarps * kMaxSplits * 4 <= kBytes);
};

/// A warp's 16 rows. Of a product's tile a lane has columns 2 (lane % 4) + {0, 1} of rows lane / 4 + {0, 8}.
template <KvType kK, KvType kV, int kD, int kRowWarps>
struct Warp {
  static constexpr int kWarpKeys = kKeys * kRowWarps / 4;  ///< keys of a tile that are this warp's
  static constexpr int kKeyTiles = kWarpKeys / 8;
  static constexpr bool kF16Keys = kK != KvType::kBF16, kF16Values = kV == KvType::kF16;
  /// ln(1024), where weights are f16, which has no small ones, and what takes it back.
  static constexpr float kLift = kF16Values ? 6.931471805599453f : 0, kLower = kF16Values ? 1.0f / 1024 : 1;
  static constexpr int kSplits = kV == KvType::kQ8_0 ? 1 : kKeyTiles / 2;  ///< groups of 16 split weights at a time

  int lane, first_row, first_key;  ///< within the block, within the tile
  float top[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {0, 0};
  float values[kD / 8][4] = {};

  __device__ Warp() : lane(static_cast<int>(threadIdx.x % 32)) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    first_row = kRowWarps == 1 ? 0 : warp * 16;
    first_key = kRowWarps == 1 ? warp * kWarpKeys : 0;
  }

  /// The first row of 8 that this lane names to load_matrix_x4: for queries and values rows before columns, for keys
  /// columns before rows.
  __device__ const uint16_t* rows_first(const uint16_t* tile, int row) const {
    return tile + (row + lane % 16) * kPitch<kD> + lane / 16 * 8;
  }
  __device__ const uint16_t* columns_first(const uint16_t* tile, int row) const {
    return tile + (row + lane / 16 * 8 + lane % 8) * kPitch<kD> + lane / 8 % 2 * 8;
  }

  /// Adds the products of columns [16 step, 16 step + 16) with the keys.
  __device__ void multiply_keys(const uint16_t* high, const uint16_t* low, const uint16_t* keys, int step,
                                float (&sums)[kKeyTiles][4]) const {
    uint32_t q_high[4], q_low[4];
    load_matrix_x4(q_high, rows_first(high, first_row) + step * 16);
    load_matrix_x4(q_low, rows_first(low, first_row) + step * 16);
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; tile += 2) {
      uint32_t k[4];
      load_matrix_x4(k, columns_first(keys, first_key + tile * 8) + step * 16);
      multiply_split<kF16Keys>(sums[tile], sums[tile + 1], q_high, q_low, k);
    }
  }

  __device__ void multiply_keys(const Arguments& a, const uint16_t* high, const uint16_t* low, const uint16_t* keys,
                                const float* scales, float (&scores)[kKeyTiles][4]) const {
    if constexpr (kK != KvType::kQ8_0) {
#pragma unroll
      for (int step = 0; step < kD / 16; ++step) {
        if (step * 16 < a.d) multiply_keys(high, low, keys, step, scores);
      }
    } else {
#pragma unroll 1
      for (int block = 0; block * kBlockElements < a.d; ++block) {
        float sums[kKeyTiles][4] = {};
        multiply_keys(high, low, keys, 2 * block, sums);
        multiply_keys(high, low, keys, 2 * block + 1, sums);
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile) {
          const float* at = scales + block * kKeys + first_key + tile * 8 + lane % 4 * 2;
          for (int i = 0; i < 4; ++i) scores[tile][i] = fmaf(sums[tile][i], at[i % 2], scores[tile][i]);
        }
      }
    }
  }

  /// Products become scores. `facts` are those of the lane's first row.
  __device__ void finish_scores(const Arguments& a, const RowFacts* facts, float (&scores)[kKeyTiles][4]) const {
    const float factors[2] = {facts[0].factor, facts[8].factor};
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] *= factors[i / 2];
    }
    soft_cap(a, scores);
  }

  /// Scores become weights, times exp(kLift). What earlier values count from now on is put in keep[row].
  __device__ void soft_max(float (&scores)[kKeyTiles][4], float (&keep)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = top[row];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        largest = fmaxf(largest, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const float base = largest == kMinusInfinity ? 0 : largest;
      keep[row] = __expf(top[row] - base);
      top[row] = largest;
      float added = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 2 * row; i < 2 * row + 2; ++i) {
          scores[n][i] = __expf(scores[n][i] - base + kLift);
          added += scores[n][i];
        }
      }
      sum[row] = sum[row] * keep[row] + added;
    }
  }

  /// The weights of 16 keys as the left side of a product, times what is given for keys 2 (lane % 4) + {0, 1, 8, 9}.
  __device__ static void split_weights(const float (&left)[4], const float (&right)[4], const float (&times)[4],
                                       uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = i < 2 ? left : right;
      const Split parts =
          split<kF16Values>(from[i % 2 * 2] * times[i / 2 * 2], from[i % 2 * 2 + 1] * times[i / 2 * 2 + 1]);
      high[i] = parts.high, low[i] = parts.low;
    }
  }

  /// Adds the weighted values of columns [32 part, 32 part + 32). `high` and `low` hold the weights of all the warp's
  /// keys in turn, or with q8_0 values those of 16 keys, made here with the part's scales.
  __device__ void weigh(const Arguments& a, const uint16_t* tile, const float* scales, int part,
                        const float (&weights)[kKeyTiles][4], uint32_t (&high)[kSplits][4], uint32_t (&low)[kSplits][4],
                        const float (&keep)[2]) {
    float sums[4][4] = {};
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      const int of = kSplits == 1 ? 0 : n / 2;
      if constexpr (kV == KvType::kQ8_0) {
        const float* at = scales + part * kKeys + first_key + n * 8 + lane % 4 * 2;
        split_weights(weights[n], weights[n + 1], {at[0], at[1], at[8], at[9]}, high[of], low[of]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = part * 32 + half * 16;
        if (column >= a.e) break;
        uint32_t v[4];
        load_matrix_x4_trans(v, rows_first(tile, first_key + n * 8) + column);
        multiply_split<kF16Values>(sums[2 * half], sums[2 * half + 1], high[of], low[of], v);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[part * 4 + n][i] = fmaf(values[part * 4 + n][i], keep[i / 2], sums[n][i]);
    }
  }

  /// Each tile's products are summed on their own: sums in tensor cores lose a little with every further product.
  __device__ void weigh(const Arguments& a, const uint16_t* tile, const float* scales,
                        const float (&weights)[kKeyTiles][4], const float (&keep)[2]) {
    uint32_t high[kSplits][4], low[kSplits][4];
    if constexpr (kV != KvType::kQ8_0) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        split_weights(weights[n], weights[n + 1], {1, 1, 1, 1}, high[n / 2], low[n / 2]);
      }
    }
#pragma unroll
    for (int part = 0; part < kD / 32; ++part) {
      if (part * 32 < a.e) weigh(a, tile, scales, part, weights, high, low, keep);
    }
  }

  /// After the last tile: sums over the row's lanes; the lift is taken back.
  __device__ void finish() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum[row] += __shfl_xor_sync(~0u, sum[row], 1);
      sum[row] += __shfl_xor_sync(~0u, sum[row], 2);
      sum[row] *= kLower;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        values[n][2 * row] *= kLower;
        values[n][2 * row + 1] *= kLower;
      }
    }
  }
  __device__ void take_second_row() {
    next_row(values);
    top[0] = top[1], sum[0] = sum[1];
  }
};

/// Rows of one warp each, to the result where the block is alone, or to the split's partials.
template <class Warp>
__device__ inline void write_rows(const Arguments& a, const Place& place, bool alone, Warp& warp) {
#pragma unroll 1
  for (int half = 0; half < 2; ++half, warp.take_second_row()) {
    const int in_block = warp.first_row + warp.lane / 4 + 8 * half, row = place.first_row + in_block;
    if (in_block >= place.rows) continue;
    const RowEnd end = end_of(a, place, alone, row, warp.top[0], warp.sum[0], warp.lane % 4 == 0);
    store_row(end.to, warp.lane, end.factor, a.e, warp.values);
  }
}

/// Rows that all warps have a part of: joined in the order of warps.
template <int kD, class Warp>
__device__ inline void join_rows(const Arguments& a, const Place& place, bool alone, Warp& warp, std::byte* shared) {
  auto* parts = reinterpret_cast<float*>(shared);  // [warp][row][kD]
  float* stats = parts + kWarps * 16 * kD;         // [warp][row] of top, sum
  const int index = static_cast<int>(threadIdx.x / 32);
  __syncthreads();  // tiles are no longer read
#pragma unroll 1
  for (int half = 0; half < 2; ++half, warp.take_second_row()) {
    const int row = index * 16 + warp.lane / 4 + 8 * half;
    store_row(parts + row * kD, warp.lane, 1, a.e, warp.values);
    if (warp.lane % 4 == 0) stats[2 * row] = warp.top[0], stats[2 * row + 1] = warp.sum[0];
  }
  __syncthreads();
#pragma unroll 1
  for (int in_block = index; in_block < place.rows; in_block += kWarps) {
    float top = kMinusInfinity, sum = 0, keep[kWarps];
    for (int i = 0; i < kWarps; ++i) top = fmaxf(top, stats[2 * (i * 16 + in_block)]);
    for (int i = 0; i < kWarps; ++i) {
      const float* from = stats + 2 * (i * 16 + in_block);
      keep[i] = from[0] == kMinusInfinity ? 0 : expf(from[0] - top);
      sum += from[1] * keep[i];
    }
    const RowEnd end = end_of(a, place, alone, place.first_row + in_block, top, sum, warp.lane == 0);
#pragma unroll 1
    for (int column = warp.lane; column < a.e; column += 32) {
      float value = 0;
      for (int i = 0; i < kWarps; ++i) value += parts[(i * 16 + in_block) * kD + column] * keep[i];
      end.store(a, column, value);
    }
  }
}

/// Values of a tile that no row of the block sees are cleared: 0 * NaN would spoil the sums.
template <class Values>
__device__ inline void clear_unseen(const Values& values, int tile, int* seen) {
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kKeys) {
    if (seen[thread] == 0) values.clear(tile, thread);
    seen[thread] = 0;
  }
  __syncthreads();
}

/// Blocks of a multiprocessor that registers must leave room for. With both in q8_0 three would spill.
template <KvType kK, KvType kV, int kD, int kRowWarps>
inline constexpr int kBlocks = kD > 128                                                                    ? 1
                               : kD > 64 || (kRowWarps == 4 && kK == KvType::kQ8_0 && kV == KvType::kQ8_0) ? 2
                                                                                                           : 3;

template <KvType kK, KvType kV, int kD, int kRowWarps>
__global__ void __launch_bounds__(kThreads, kBlocks<kK, kV, kD, kRowWarps>) attention_tiles(const Arguments a) {
  using Block = Layout<kK, kV, kD, kRowWarps>;
  using BlockWarp = Warp<kK, kV, kD, kRowWarps>;
  SHOAL_DYNAMIC_SHARED(std::byte, shared);
  __shared__ int used;  // splits; of no interest before the end, so it takes no register
  auto* high = reinterpret_cast<uint16_t*>(shared);
  auto* low = reinterpret_cast<uint16_t*>(shared + Block::kQueryBytes);
  auto* facts = reinterpret_cast<RowFacts*>(shared + Block::kFactsAt);
  auto* seen = reinterpret_cast<int*>(shared + Block::kSeenAt);

  const Place place = place_of(a);
  let_next_start();
  wait_for_previous();
  const Sight in_sight = sight(a, place);
  const Share share = share_of(in_sight.some, a.splits, place.split);
  if (place.split >= share.used) return;
  if (threadIdx.x == 0) used = share.used;
  const auto rows_of = [&](const Source& source, int columns) {
    return KvRows{source.data + place.kv_head * source.head + place.batch * source.batch, source.row, source.end,
                  columns};
  };
  const typename Block::Keys keys{shared + Block::kKeysAt, rows_of(a.k, a.d)};
  const typename Block::Values values{shared + Block::kValuesAt, rows_of(a.v, a.e)};
  if (share.first < share.last) {
    keys.fetch(share.first, in_sight.some);
    values.fetch(share.first, in_sight.some);
  }
  copy_async_commit();
  load_queries<BlockWarp::kF16Keys, kWarps, kD>(a, place, Block::kRows, kPitch<kD>, a.scale, high, low, facts);
  if (threadIdx.x < kKeys) seen[threadIdx.x] = 0;
  __syncthreads();

  BlockWarp warp;
  const bool busy = warp.first_row < place.rows;  // else it only helps to copy
  const bool gaps = a.mask != nullptr || a.window > 0;
  for (int tile = share.first; tile < share.last; ++tile) {
    copy_async_wait<0>();
    __syncthreads();  // the tile has come, and the one before is no longer read
    if constexpr (kK == KvType::kQ8_0 || kV == KvType::kQ8_0) {
      keys.unpack(tile, in_sight.some);
      values.unpack(tile, in_sight.some);
      __syncthreads();
    }
    if (tile + 1 < share.last) {
      keys.fetch(tile + 1, in_sight.some);
      values.fetch(tile + 1, in_sight.some);
    }
    copy_async_commit();
    const bool whole =
        a.mask == nullptr && tile * kKeys >= in_sight.all.begin && (tile + 1) * kKeys <= in_sight.all.end;
    float scores[BlockWarp::kKeyTiles][4] = {};
    if (busy) {
      warp.multiply_keys(a, high, low, keys.tile(tile), keys.scales(), scores);
      const RowFacts* rows = facts + warp.first_row + warp.lane / 4;
      warp.finish_scores(a, rows, scores);
      if (!whole) hide(a, rows, tile * kKeys, warp.first_key, 1, scores, seen);
    }
    if (gaps && !whole) clear_unseen(values, tile, seen);
    if (busy) {
      float keep[2];
      warp.soft_max(scores, keep);
      warp.weigh(a, values.tile(tile), values.scales(), scores, keep);
    }
  }
  copy_async_wait<0>();
  warp.finish();
  const bool alone = used == 1;
  if constexpr (kRowWarps == 1) {
    join_rows<kD>(a, place, alone, warp, shared);
  } else {
    write_rows(a, place, alone, warp);
  }
  merge_splits(a, place, {0, a.e}, used, reinterpret_cast<float*>(shared));
}

}  // namespace shoal::cuda::attention
