// Attention on tensor cores, for prompts and for decoding, with K and V in f16, bf16 or q8_0.
//
// A block has four warps. With kRowWarps = 4, a block processes 64 rows, 16 per warp. With kRowWarps = 1, all warps
// share 16 rows. In this case, each warp processes a quarter of every KV tile, and join_rows() merges the warps'
// results at the end. A warp multiplies its queries by a tile's keys and updates its running soft-max (Milakov and
// Gimelshein 2018, arXiv:1805.02867). The soft-max leaves the weights in registers. The second product, weights by
// values, reads the weights from the same registers.
//
// K and V are exact as 16-bit floats (q8_0 as integers whose scales are applied in f32). Queries and weights are sums
// of two 16-bit floats. docs/cuda_kernels.md gives the reasons for these sums, and the reason why tensor cores sum over
// only one KV tile.
#pragma once

#include "devices/cuda/kernels/attention_merge.h"
#include "devices/cuda/kernels/attention_parts.h"
#include "devices/cuda/kernels/attention_stage.h"

namespace shoal::cuda::attention {

/// Byte offsets in a block's shared memory. At the end, the warps' partial results overwrite queries, keys and values.
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

/// A warp processes 16 rows. In each 8-column tile of a product, a lane holds columns 2 (lane % 4) + {0, 1} of rows
/// lane / 4 + {0, 8}.
template <KvType kK, KvType kV, int kD, int kRowWarps>
struct Warp {
  static constexpr int kWarpKeys = kKeys * kRowWarps / 4;  ///< number of a tile's keys that a warp processes
  static constexpr int kKeyTiles = kWarpKeys / 8;
  static constexpr bool kF16Keys = kK != KvType::kBF16, kF16Values = kV == KvType::kF16;
  /// kLift = ln(1024) scales f16 weights up by 1024, because f16 cannot represent small weights. kLower undoes this
  /// scaling.
  static constexpr float kLift = kF16Values ? 6.931471805599453f : 0, kLower = kF16Values ? 1.0f / 1024 : 1;
  static constexpr int kSplits = kV == KvType::kQ8_0 ? 1 : kKeyTiles / 2;  ///< number of groups (16 weights each) that
                                                                           ///< are in registers as high and low parts
                                                                           ///< at the same time

  int lane, first_row, first_key;  ///< `first_row`: first row of the warp in the block; `first_key`: first key of the
                                   ///< warp in the tile
  float top[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {0, 0};
  float values[kD / 8][4] = {};

  __device__ Warp() : lane(static_cast<int>(threadIdx.x % 32)) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    first_row = kRowWarps == 1 ? 0 : warp * 16;
    first_key = kRowWarps == 1 ? warp * kWarpKeys : 0;
  }

  /// rows_first() and columns_first() return the address of the matrix row that this lane passes to load_matrix_x4. In
  /// rows_first() (queries and values), the second of the four 8 x 8 matrices is below the first matrix. In
  /// columns_first() (keys), the second matrix is to the right of the first matrix.
  __device__ const uint16_t* rows_first(const uint16_t* tile, int row) const {
    return tile + (row + lane % 16) * kPitch<kD> + lane / 16 * 8;
  }
  __device__ const uint16_t* columns_first(const uint16_t* tile, int row) const {
    return tile + (row + lane / 16 * 8 + lane % 8) * kPitch<kD> + lane / 8 % 2 * 8;
  }

  /// Multiplies queries by keys in columns [16 step, 16 step + 16) and adds the products to `sums`.
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

  /// Converts products to scores. `facts` points to the RowFacts of the lane's first row.
  __device__ void finish_scores(const Arguments& a, const RowFacts* facts, float (&scores)[kKeyTiles][4]) const {
    const float factors[2] = {facts[0].factor, facts[8].factor};
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] *= factors[i / 2];
    }
    soft_cap(a, scores);
  }

  /// Converts scores to weights, scaled by exp(kLift). keep[row] becomes the factor for the row's sums from earlier
  /// tiles.
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

  /// Multiplies the weights of 16 keys by `times` and splits the products into high and low parts, in the layout of an
  /// mma's left operand. `times` contains the factors of the lane's keys. These keys are 2 (lane % 4) + {0, 1, 8, 9}.
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

  /// Adds the weighted values of columns [32 part, 32 part + 32). `high` and `low` contain the weights of all keys of
  /// the warp. For q8_0 values, this function computes `high` and `low` with the scales of the part, for 16 keys at a
  /// time.
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

  /// Each tile is summed separately, because a long sum in tensor cores loses a little precision with every product.
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

  /// Each warp calls finish() after the last tile. Adds up each row's sums over the row's lanes, and undoes the scaling
  /// of the weights.
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

/// Writes the rows of one warp (kRowWarps = 4). The destination is the result if only this block computes these rows.
/// Otherwise the destination is the partials of the block's split.
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

/// Writes the rows if every warp has a partial result of each row (kRowWarps = 1). Adds up the partial results of a row
/// in the order of warps.
template <int kD, class Warp>
__device__ inline void join_rows(const Arguments& a, const Place& place, bool alone, Warp& warp, std::byte* shared) {
  auto* parts = reinterpret_cast<float*>(shared);  // [warp][row][kD]
  float* stats = parts + kWarps * 16 * kD;         // [warp][row][top, sum]
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

/// Zeroes the tile's values that no row of the block sees, because 0 * NaN would make the sums NaN.
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

/// Minimum number of resident blocks per multiprocessor. This number limits the registers per thread
/// (__launch_bounds__). If K and V are q8_0, registers would spill with three blocks.
template <KvType kK, KvType kV, int kD, int kRowWarps>
inline constexpr int kBlocks = kD > 128                                                                    ? 1
                               : kD > 64 || (kRowWarps == 4 && kK == KvType::kQ8_0 && kV == KvType::kQ8_0) ? 2
                                                                                                           : 3;

template <KvType kK, KvType kV, int kD, int kRowWarps>
__global__ void __launch_bounds__(kThreads, kBlocks<kK, kV, kD, kRowWarps>) attention_tiles(const Arguments a) {
  using Block = Layout<kK, kV, kD, kRowWarps>;
  using BlockWarp = Warp<kK, kV, kD, kRowWarps>;
  SHOAL_DYNAMIC_SHARED(std::byte, shared);
  __shared__ int used;  // number of splits; needed only at the end, so it is in shared memory instead of a register
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
  const bool busy = warp.first_row < place.rows;  // a warp without rows still helps to copy tiles
  const bool gaps = a.mask != nullptr || a.window > 0;
  for (int tile = share.first; tile < share.last; ++tile) {
    copy_async_wait<0>();
    __syncthreads();  // the tile has arrived, and the previous tile is no longer read
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
