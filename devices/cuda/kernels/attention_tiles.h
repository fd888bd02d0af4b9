// Attention on tensor cores, for prompts and for decoding, with K and V in f16, bf16 or q8_0.
//
// A block has four warps. With kRowWarps = 4, a block processes 64 rows, 16 per warp. A warp multiplies its queries by
// a tile's keys and updates its running soft-max (Milakov and Gimelshein 2018, arXiv:1805.02867). The soft-max leaves
// the weights in registers. The second product, weights by values, reads the weights from the same registers.
//
// With kRowWarps = 1, all warps share 16 rows. Each warp multiplies the queries by a quarter of the tile's keys. The
// warps exchange their scores in shared memory, and each warp computes the soft-max of the whole tile. Then each warp
// computes a quarter of the columns of the result. Kernels with kRowWarps = 4 also compute row tiles of at most 16 rows
// in this way. Both variants add the same numbers in the same order, so the number of rows does not change the bits of
// a row. Products that an addition follows use __fmul_rn(), because the compiler could fuse the operations in one
// variant only.
//
// K and V are exact as 16-bit floats (q8_0 as integers whose scales are applied in f32). Queries and weights are sums
// of two 16-bit floats. docs/cuda_kernels.md gives the reasons for these sums, and the reason why tensor cores sum over
// only one KV tile.
#pragma once

#include "devices/cuda/kernels/attention_merge.h"
#include "devices/cuda/kernels/attention_parts.h"
#include "devices/cuda/kernels/attention_stage.h"

namespace shoal::cuda::attention {

/// Byte offsets in a block's shared memory. At the end, the factors of segments overwrite the queries.
template <KvType kK, KvType kV, int kD, int kRowWarps>
struct Layout {
  using Keys = Stage<kK, kD, true>;
  using Values = Stage<kV, kD, false>;
  static constexpr int kRows = 16 * kRowWarps;
  static constexpr size_t kQueryBytes = kRows * kPitch<kD> * 2;
  static constexpr size_t kKeysAt = 2 * kQueryBytes, kValuesAt = kKeysAt + Keys::kBytes;
  static constexpr size_t kFactsAt = kValuesAt + Values::kBytes, kSeenAt = kFactsAt + kRows * sizeof(RowFacts);
  static constexpr size_t kRowsAt = kSeenAt + kKeys * 4, kScoresAt = kRowsAt + (sizeof(KeyRows) + 15) / 16 * 16;
  static constexpr int kScorePitch = kKeys + 8;  // in floats
  static constexpr size_t kBytes = kScoresAt + (kRowWarps == 1 ? kRows * kScorePitch * 4 : 0);
  static_assert(kWarps * kMergeFloats * 4 <= kBytes);
};

/// A warp processes 16 rows. In each 8-column tile of a product, a lane holds columns 2 (lane % 4) + {0, 1} of rows
/// lane / 4 + {0, 8}.
template <KvType kK, KvType kV, int kD, int kRowWarps>
struct Warp {
  static constexpr bool kShared = kRowWarps == 1;  ///< whether all warps process the same rows
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kOwnKeyTiles = kShared ? kKeyTiles / kWarps : kKeyTiles;  ///< for the warp's scores
  static constexpr int kColumns = kShared ? kD / kWarps : kD;                    ///< number of columns of the result
  static constexpr int kPart = kColumns < 32 ? kColumns : 32;  ///< number of columns that weigh() processes at a time
  static constexpr bool kF16Keys = kK != KvType::kBF16, kF16Values = kV == KvType::kF16;
  /// kLift = ln(1024) scales f16 weights up by 1024, because f16 cannot represent small weights. kLower undoes this
  /// scaling.
  static constexpr float kLift = kF16Values ? 6.931471805599453f : 0, kLower = kF16Values ? 1.0f / 1024 : 1;
  static constexpr int kSplits = kV == KvType::kQ8_0 ? 1 : kKeyTiles / 2;  ///< number of groups (16 weights each) that
                                                                           ///< are in registers as high and low parts
                                                                           ///< at the same time
  using Scores = float[kOwnKeyTiles][4];
  using Weights = float[kKeyTiles][4];

  int lane, first_row, first_key, first_column;  ///< `first_row`: first row of the warp in the block; `first_key`:
                                                 ///< first key of the warp in the tile, for scores
  TwoRows<kColumns / 8> segment;                 ///< sums of the current segment
  Totals totals;                                 ///< of the segments before it

  __device__ Warp() {
    const auto thread = static_cast<int>(kept(threadIdx.x)), warp = thread / 32;
    lane = thread % 32;
    first_row = kShared ? 0 : warp * 16;
    first_key = kShared ? warp * kOwnKeyTiles * 8 : 0;
    first_column = kShared ? warp * kColumns : 0;
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
                                Scores& sums) const {
    uint32_t q_high[4], q_low[4];
    load_matrix_x4(q_high, rows_first(high, first_row) + step * 16);
    load_matrix_x4(q_low, rows_first(low, first_row) + step * 16);
#pragma unroll
    for (int tile = 0; tile < kOwnKeyTiles; tile += 2) {
      uint32_t k[4];
      load_matrix_x4(k, columns_first(keys, first_key + tile * 8) + step * 16);
      multiply_split<kF16Keys>(sums[tile], sums[tile + 1], q_high, q_low, k);
    }
  }

  __device__ void multiply_keys(const Arguments& a, const uint16_t* high, const uint16_t* low, const uint16_t* keys,
                                const float* scales, Scores& scores) const {
    if constexpr (kK != KvType::kQ8_0) {
#pragma unroll
      for (int step = 0; step < kD / 16; ++step) {
        if (step * 16 < a.d) multiply_keys(high, low, keys, step, scores);
      }
    } else {
#pragma unroll 1
      for (int block = 0; block * kBlockElements < a.d; ++block) {
        Scores sums = {};
        multiply_keys(high, low, keys, 2 * block, sums);
        multiply_keys(high, low, keys, 2 * block + 1, sums);
#pragma unroll
        for (int tile = 0; tile < kOwnKeyTiles; ++tile) {
          const float* at = scales + block * kKeys + first_key + tile * 8 + lane % 4 * 2;
          for (int i = 0; i < 4; ++i) scores[tile][i] = fmaf(sums[tile][i], at[i % 2], scores[tile][i]);
        }
      }
    }
  }

  /// Converts products to scores. `facts` points to the RowFacts of the lane's first row.
  __device__ void finish_scores(const Arguments& a, const RowFacts* facts, Scores& scores) const {
    const float factors[2] = {facts[0].factor, facts[8].factor};
#pragma unroll
    for (int n = 0; n < kOwnKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = __fmul_rn(scores[n][i], factors[i / 2]);
    }
    soft_cap(a, scores);
  }

  /// Collects the scores of all warps. `shared` contains [row][key].
  __device__ void exchange(const Scores& own, float* shared, Weights& all) const {
    constexpr int kPitch = Layout<kK, kV, kD, kRowWarps>::kScorePitch;
    float* const at = shared + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kOwnKeyTiles; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        store_as<float2>(at + 8 * row * kPitch + first_key + n * 8, float2{own[n][2 * row], own[n][2 * row + 1]});
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const auto pair = load_as<float2>(at + 8 * row * kPitch + n * 8);
        all[n][2 * row] = pair.x, all[n][2 * row + 1] = pair.y;
      }
    }
  }

  /// Converts scores to weights, scaled by exp(kLift). keep[row] becomes the factor for the row's sums from earlier
  /// tiles.
  __device__ void soft_max(Weights& scores, float (&keep)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = segment.top[row];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        largest = fmaxf(largest, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const float base = largest == kMinusInfinity ? 0 : largest;
      keep[row] = __expf(segment.top[row] - base);
      segment.top[row] = largest;
      float added = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 2 * row; i < 2 * row + 2; ++i) {
          scores[n][i] = __expf(scores[n][i] - base + kLift);
          added += scores[n][i];
        }
      }
      segment.sum[row] = fmaf(segment.sum[row], keep[row], added);
    }
  }

  /// Multiplies the weights of 16 keys by `times` and splits the products into high and low parts, in the layout of an
  /// mma's left operand. `times` contains the factors of the lane's keys. These keys are 2 (lane % 4) + {0, 1, 8, 9}.
  __device__ static void split_weights(const float (&left)[4], const float (&right)[4], const float (&times)[4],
                                       uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = i < 2 ? left : right;
      const Split parts = split<kF16Values>(__fmul_rn(from[i % 2 * 2], times[i / 2 * 2]),
                                            __fmul_rn(from[i % 2 * 2 + 1], times[i / 2 * 2 + 1]));
      high[i] = parts.high, low[i] = parts.low;
    }
  }

  /// Adds the weighted values of the columns first_column + [kPart part, kPart part + kPart). `high` and `low` contain
  /// the weights of all keys. For q8_0 values, this function computes `high` and `low` with the scales of the part, for
  /// 16 keys at a time.
  __device__ void weigh(const Arguments& a, const uint16_t* tile, const float* scales, int part, const Weights& weights,
                        uint32_t (&high)[kSplits][4], uint32_t (&low)[kSplits][4], const float (&keep)[2]) {
    float sums[kPart / 8][4] = {};
    const int first = first_column + part * kPart;
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      const int of = kSplits == 1 ? 0 : n / 2;
      if constexpr (kV == KvType::kQ8_0) {
        const float* at = scales + first / kBlockElements * kKeys + n * 8 + lane % 4 * 2;
        split_weights(weights[n], weights[n + 1], {at[0], at[1], at[8], at[9]}, high[of], low[of]);
      }
#pragma unroll
      for (int half = 0; half < kPart / 16; ++half) {
        const int column = first + half * 16;
        if (column >= a.e) break;
        uint32_t v[4];
        load_matrix_x4_trans(v, rows_first(tile, n * 8) + column);
        multiply_split<kF16Values>(sums[2 * half], sums[2 * half + 1], high[of], low[of], v);
      }
    }
#pragma unroll
    for (int n = 0; n < kPart / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = segment.values[part * (kPart / 8) + n][i];
        value = fmaf(value, keep[i / 2], sums[n][i]);
      }
    }
  }

  /// Each tile is summed separately, because a long sum in tensor cores loses a little precision with every product.
  __device__ void weigh(const Arguments& a, const uint16_t* tile, const float* scales, const Weights& weights,
                        const float (&keep)[2]) {
    uint32_t high[kSplits][4], low[kSplits][4];
    if constexpr (kV != KvType::kQ8_0) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        split_weights(weights[n], weights[n + 1], {1, 1, 1, 1}, high[n / 2], low[n / 2]);
      }
    }
#pragma unroll
    for (int part = 0; part < kColumns / kPart; ++part) {
      if (first_column + part * kPart < a.e) weigh(a, tile, scales, part, weights, high, low, keep);
    }
  }

  /// The warps call end_segment() after the last tile of a segment.
  __device__ void end_segment(const Arguments& a, const Work& work, int index) {
    const Span span{lane, first_row, first_column, min(first_column + kColumns, a.e), first_column == 0};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      segment.sum[row] += __shfl_xor_sync(~0u, segment.sum[row], 1);
      segment.sum[row] += __shfl_xor_sync(~0u, segment.sum[row], 2);
    }
    segment.multiply(kLower);
    segment.end(a, work, span, totals, index);
  }
};

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

/// Computes the rows of a place.
template <KvType kK, KvType kV, int kD, int kRowWarps>
__device__ inline void compute_rows(const Arguments& a, const Work& work, std::byte* shared) {
  using Block = Layout<kK, kV, kD, kRowWarps>;
  using BlockWarp = Warp<kK, kV, kD, kRowWarps>;
  auto* high = reinterpret_cast<uint16_t*>(shared);
  auto* low = reinterpret_cast<uint16_t*>(shared + Block::kQueryBytes);
  auto* facts = reinterpret_cast<RowFacts*>(shared + Block::kFactsAt);
  auto* seen = reinterpret_cast<int*>(shared + Block::kSeenAt);
  auto& key_rows = *reinterpret_cast<KeyRows*>(shared + Block::kRowsAt);
  const auto rows_of = [&](const Source& source, int columns) {
    return KvRows{source.data + work.place.kv_head * source.head + work.place.batch * source.batch,
                  static_cast<int>(source.row), source.end, columns};
  };
  const typename Block::Keys keys{shared + Block::kKeysAt, rows_of(a.k, a.d)};
  const typename Block::Values values{shared + Block::kValuesAt, rows_of(a.v, a.e)};
  const auto fetch = [&](int tile) {
    if (tile < work.share.tiles.end) {
      keys.fetch(tile, key_rows.of(tile));
      values.fetch(tile, key_rows.of(tile));
    }
    copy_async_commit();
  };
  key_rows.start(a, work);
  fetch(work.share.tiles.begin);
  load_queries<BlockWarp::kF16Keys, kWarps, kD>(a, work.place, Block::kRows, kPitch<kD>, a.scale, high, low, facts);
  if (threadIdx.x < kKeys) seen[threadIdx.x] = 0;
  __syncthreads();

  BlockWarp warp;
  const bool busy = warp.first_row < work.place.rows;  // a warp without rows still helps to copy tiles
  const bool gaps = a.mask != nullptr || a.window > 0;
  int segment = work.share.segments.begin;
#pragma unroll 1
  do {  // also runs if no KV row is visible
    const Range tiles = work.share.tiles_of(segment);
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      copy_async_wait<0>();
      __syncthreads();  // the tile has arrived, and the previous tile is no longer read
      if constexpr (kK == KvType::kQ8_0 || kV == KvType::kQ8_0) {
        keys.unpack(key_rows.of(tile));
        values.unpack(key_rows.of(tile));
        __syncthreads();
      }
      fetch(tile + 1);
      const int row_of_key = KeyRows::find(a, work, tile + 2);
      const bool whole = work.sees_whole(a, tile) && !key_rows.has_missing(tile);
      typename BlockWarp::Scores scores = {};
      if (busy) {
        warp.multiply_keys(a, high, low, keys.tile(tile), keys.scales(), scores);
        const RowFacts* rows = facts + warp.first_row + warp.lane / 4;
        warp.finish_scores(a, rows, scores);
        if (!whole) hide(a, rows, key_rows, tile, warp.first_key, 1, scores, seen);
      }
      if (gaps && !whole) clear_unseen(values, tile, seen);
      if constexpr (BlockWarp::kShared) {
        typename BlockWarp::Weights weights;
        warp.exchange(scores, reinterpret_cast<float*>(shared + Block::kScoresAt), weights);
        float keep[2];
        warp.soft_max(weights, keep);
        warp.weigh(a, values.tile(tile), values.scales(), weights, keep);
      } else if (busy) {
        float keep[2];
        warp.soft_max(scores, keep);
        warp.weigh(a, values.tile(tile), values.scales(), scores, keep);
      }
      key_rows.store(tile + 2, row_of_key);
    }
    warp.end_segment(a, work, segment);
  } while (++segment < work.share.segments.end);
  copy_async_wait<0>();
  end_rows(a, work, {0, a.e}, reinterpret_cast<float*>(shared));
}

template <KvType kK, KvType kV, int kD, int kRowWarps>
__global__ void __launch_bounds__(kThreads, kBlocks<kK, kV, kD, kRowWarps>) attention_tiles(const Arguments a) {
  static_assert(Layout<kK, kV, kD, 1>::kBytes <= Layout<kK, kV, kD, 4>::kBytes);
  SHOAL_DYNAMIC_SHARED(std::byte, shared);
  __shared__ Work work;
  let_next_start();
  wait_for_previous();
  for_places(a, [&](const Place& place) {
    if (!start_work(a, place, work)) return;
    if constexpr (kRowWarps == 4) {
      if (work.place.rows > 16) return compute_rows<kK, kV, kD, 4>(a, work, shared);
    }
    compute_rows<kK, kV, kD, 1>(a, work, shared);
  });
}

}  // namespace shoal::cuda::attention
