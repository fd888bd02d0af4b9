// Attention on tensor cores for inputs that attention_tiles.h does not support: other pairs of dtypes, and heads of up
// to 576 columns. Eight warps process 64 rows, 16 rows per pair of warps. K and V pass through three slots of shared
// memory, slice by slice (attention_slice_stage.h).
//
// For each tile of 64 keys, the slices of K come first, with 64 columns each. Each warp of a pair multiplies the
// queries by 32 of the keys. Then the two warps exchange their largest scores and store their weights in shared memory.
// Then the slices of V come, with 16 rows each. Each warp of a pair processes half of the columns. A block processes at
// most 288 columns of V, so that a warp keeps its values (16 rows by 144 columns) in registers. If V has more than 288
// columns, several blocks (blockIdx.y) process different columns of V and compute the same scores.
//
// Queries, weights and q8_0 values are sums of two 16-bit floats. The product of two low parts is omitted
// (docs/cuda_kernels.md). Tensor cores add up the products over 32 columns of K or 16 rows of V. An fmaf then adds this
// sum to the scores or values. For scores, the fmaf also undoes the scaling of the queries by powers of two.
#pragma once

#include "devices/cuda/kernels/attention_merge.h"
#include "devices/cuda/kernels/attention_slice_stage.h"

namespace shoal::cuda::attention {

inline constexpr int kSliceThreads = kSliceWarps * 32;
inline constexpr int kSliceRows = 64;                          ///< number of rows per block
inline constexpr int kSliceGroups = kSliceMostWidth / 16 / 2;  ///< largest number of groups (16 columns of a V slice)
                                                               ///< per warp

/// Byte offsets in a block's shared memory.
struct SliceLayout {
  static constexpr int kWeightPitch = kKeys + 8;  // in elements
  int query_pitch;                                // in elements
  int width;                                      // number of columns of a V slice
  int weights, facts, marks, tops, key_rows, slots, slot_bytes;

  __host__ __device__ SliceLayout(DType k, DType v, int d, int width) : width(width) {
    query_pitch = up_to_16(d) + 8;
    weights = 2 * kSliceRows * query_pitch * 2;
    facts = weights + 2 * kSliceRows * kWeightPitch * 2;
    marks = facts + kSliceRows * static_cast<int>(sizeof(RowFacts));
    tops = marks + kKeys * 4;
    key_rows = tops + 2 * kSliceRows * 4;
    slots = key_rows + (static_cast<int>(sizeof(KeyRows)) + 15) / 16 * 16;
    const int key_bytes = kKeys * Slices<8>::pitch_of(k, kSliceColumns);
    const int value_bytes = kSliceKeys * Slices<32>::pitch_of(v, width);
    slot_bytes = key_bytes > value_bytes ? key_bytes : value_bytes;
  }
  __host__ __device__ int bytes() const { return slots + kSlots * slot_bytes; }
};

/// A warp processes 16 rows, half of each tile's keys, and half of each V slice's columns.
template <bool kF16Keys, bool kF16Values>
struct SliceWarp {
  static constexpr int kKeyTiles = kKeys / 2 / 8;
  static constexpr float kWeightLift = kF16Values ? 6.931471805599453f : 0;  ///< ln(1024): scales weights up by 1024,
                                                                             ///< because f16 cannot represent small
                                                                             ///< weights
  static constexpr float kWeightLower = kF16Values ? 1.0f / 1024 : 1;

  int lane, first_row, half;  ///< `first_row`: first row of the warp in the block; `half`: index of the warp in its
                              ///< pair
  TwoRows<2 * kSliceGroups> segment;  ///< sums of the current segment
  Totals totals;                      ///< of the segments before it

  __device__ SliceWarp() {
    const auto thread = static_cast<int>(kept(threadIdx.x)), warp = thread / 32;
    lane = thread % 32;
    first_row = warp / 2 * 16, half = warp % 2;
  }
  __device__ int first_key() const { return half * (kKeys / 2); }
  /// Number of columns of a V slice that the first warp of a pair processes.
  __device__ static int share(int width) { return up_to_16(width / 2); }

  /// rows_first() and columns_first() return the byte offset of the matrix row that this lane passes to load_matrix_x4.
  /// In rows_first(), the second of the four 8 x 8 matrices is below the first matrix. In columns_first(), the second
  /// matrix is to the right of the first matrix.
  __device__ int rows_first(int pitch) const { return lane % 16 * pitch + lane / 16 * 16; }
  __device__ int columns_first(int pitch) const { return (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16; }

  /// Multiplies the queries by a slice of K and adds the products to the scores. The slice begins at column `first`.
  __device__ void multiply_keys(const std::byte* high, const std::byte* low, int query_pitch, const Slices<8>& keys,
                                const std::byte* slice, int first, const RowFacts* facts,
                                float (&scores)[kKeyTiles][4]) const {
    const int count = keys.columns_from(first), pitch = keys.pitch();
    const std::byte* k_rows = slice + first_key() * pitch + columns_first(pitch);
    const int q_at = first_row * query_pitch + rows_first(query_pitch) + first * 2;
    const float factors[2] = {facts[0].factor, facts[8].factor};
#pragma unroll 1
    for (int block = 0; block * 32 < count; ++block) {
      float sums[kKeyTiles][4] = {};
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int column = block * 32 + step * 16;
        if (column >= count) break;
        uint32_t q_high[4], q_low[4];
        load_matrix_x4(q_high, high + q_at + column * 2);
        load_matrix_x4(q_low, low + q_at + column * 2);
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; tile += 2) {
          uint32_t k[4];
          load_matrix_x4(k, k_rows + tile * 8 * pitch + column * 2);
          multiply_split<kF16Keys>(sums[tile], sums[tile + 1], q_high, q_low, k);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        const int key = first_key() + tile * 8 + lane % 4 * 2;
        float scales[2] = {1, 1};
        if (kF16Keys && keys.has_scales()) {
          for (int i = 0; i < 2; ++i) scales[i] = load_as<float>(slice + (key + i + 1) * pitch - 16 + block * 4);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scores[tile][i] = fmaf(sums[tile][i], factors[i / 2] * scales[i % 2], scores[tile][i]);
        }
      }
    }
  }

  __device__ static void finish_scores(const Arguments& a, float (&scores)[kKeyTiles][4]) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = __fmul_rn(scores[n][i], a.scale);
    }
    soft_cap(a, scores);
  }

  /// Writes the largest scores of the warp's rows to tops[half][row], so that the other warp of the pair can read them.
  __device__ void show_largest(const float (&scores)[kKeyTiles][4], float* tops) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = kMinusInfinity;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        largest = fmaxf(largest, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      if (lane % 4 == 0) tops[half * kSliceRows + first_row + lane / 4 + 8 * row] = largest;
    }
  }

  /// Converts scores to weights and stores the weights' high and low parts in shared memory as [row][key]. keep[row]
  /// becomes the factor for the row's sums from earlier tiles.
  __device__ void soft_max(const float (&scores)[kKeyTiles][4], const float* tops, uint16_t* high, uint16_t* low,
                           float (&keep)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int in_block = first_row + lane / 4 + 8 * row;
      const float largest = fmaxf(segment.top[row], fmaxf(tops[in_block], tops[kSliceRows + in_block]));
      const float base = largest == kMinusInfinity ? 0 : largest;
      keep[row] = __expf(segment.top[row] - base);
      segment.top[row] = largest;
      float added = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const float left = __expf(scores[n][2 * row] - base + kWeightLift);
        const float right = __expf(scores[n][2 * row + 1] - base + kWeightLift);
        added += left + right;
        const Split parts = split<kF16Values>(left, right);
        const int at = in_block * SliceLayout::kWeightPitch + first_key() + n * 8 + lane % 4 * 2;
        store_as<uint32_t>(high + at, parts.high);
        store_as<uint32_t>(low + at, parts.low);
      }
      segment.sum[row] = fmaf(segment.sum[row], keep[row], added);
    }
  }

  /// Adds a weighted slice of V to the segment. `high` and `low` point to the weights of the slice's first key.
  __device__ void weigh(const uint16_t* high, const uint16_t* low, const Slices<32>& rows, const std::byte* slice,
                        const float (&keep)[2]) {
    constexpr int kPitch = SliceLayout::kWeightPitch * 2;
    const int pitch = rows.pitch(), first = half * share(rows.width);
    const int end = half == 0 ? min(rows.columns, share(rows.width)) : rows.columns;
    uint32_t w_high[4], w_low[4];
    const int w_at = first_row * kPitch + rows_first(kPitch);
    load_matrix_x4(w_high, reinterpret_cast<const std::byte*>(high) + w_at);
    load_matrix_x4(w_low, reinterpret_cast<const std::byte*>(low) + w_at);
    const std::byte* at = slice + rows_first(pitch) + first * 2;
#pragma unroll
    for (int group = 0; group < kSliceGroups; ++group) {
      if (first + group * 16 >= end) break;
      float sums[2][4] = {};
      uint32_t v[4];
      load_matrix_x4_trans(v, at + group * 32);
      multiply_split<kF16Values>(sums[0], sums[1], w_high, w_low, v);
      if constexpr (!kF16Values) {
        if (rows.has_low()) {
          load_matrix_x4_trans(v, at + (rows.width + group * 16) * 2);
          multiply<false>(sums[0], w_high, {v[0], v[1]});
          multiply<false>(sums[1], w_high, {v[2], v[3]});
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& value = segment.values[2 * group + n][i];
          value = fmaf(value, keep[i / 2], sums[n][i]);
        }
      }
    }
  }

  /// All threads of the block call end_segment() after the last tile of a segment. Adds up each row's sums over the
  /// row's lanes and over the two warps of the pair. The warps exchange their sums in `sums` [half][row] in shared
  /// memory. The block computes the columns [columns.begin, columns.end).
  __device__ void end_segment(const Arguments& a, const Work& work, Range columns, int width, float* sums, int index) {
    const int middle = columns.begin + share(width);
    const Span span{lane, first_row, half == 0 ? columns.begin : middle,
                    half == 0 ? min(columns.end, middle) : columns.end, half == 0};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      segment.sum[row] += __shfl_xor_sync(~0u, segment.sum[row], 1);
      segment.sum[row] += __shfl_xor_sync(~0u, segment.sum[row], 2);
      if (lane % 4 == 0) sums[half * kSliceRows + span.row(row)] = segment.sum[row];
    }
    __syncthreads();
#pragma unroll
    for (int row = 0; row < 2; ++row) segment.sum[row] = sums[span.row(row)] + sums[kSliceRows + span.row(row)];
    segment.multiply(kWeightLower);
    segment.end(a, work, span, totals, index);
    __syncthreads();  // the sums are no longer read
  }
};

/// The slices of a block's tiles in the order of use: for each tile the slices of K, then the slices of V.
struct SliceStream {
  static constexpr int kValueSlices = kKeys / kSliceKeys;
  Slices<8> keys;
  Slices<32> values;
  std::byte* slots;
  int slot_bytes, key_slices, last;  ///< `last`: one past the last tile
  const KeyRows& key_rows;
  int tile, slice = 0, to = 0, from = 0;  ///< `tile`, `slice`: the next slice to fetch; `to`: the slot of this slice;
                                          ///< `from`: the slot of the next slice to use

  __device__ void fetch() {
    if (tile < last) {
      std::byte* slot = slots + to * slot_bytes;
      if (slice < key_slices) {
        keys.fetch(slot, key_rows.of(tile), slice * kSliceColumns);
      } else {
        values.fetch(slot, key_rows.of(tile) + (slice - key_slices) * kSliceKeys, 0);
      }
      if (++slice == key_slices + kValueSlices) slice = 0, ++tile;
      to = to + 1 == kSlots ? 0 : to + 1;
    }
    copy_async_commit();
  }
  /// Waits for the next slice, calls `prepare` to convert the slice, and returns the slice. All threads of the block
  /// call next(). Before the call, a thread must have finished its use of the previous slice.
  template <class Prepare>
  __device__ const std::byte* next(const Prepare& prepare) {
    std::byte* slot = slots + from * slot_bytes;
    copy_async_wait<kSlots - 2>();
    prepare(slot);
    __syncthreads();
    fetch();
    from = from + 1 == kSlots ? 0 : from + 1;
    return slot;
  }
};

template <bool kF16Keys, bool kF16Values>
__device__ inline void compute_slices(const Arguments& a, const Work& work, std::byte* shared) {
  using BlockWarp = SliceWarp<kF16Keys, kF16Values>;
  const SliceLayout layout(a.k.dtype, a.v.dtype, a.d, slice_width(a.e));
  auto* high = reinterpret_cast<uint16_t*>(shared);
  auto* low = high + kSliceRows * layout.query_pitch;
  auto* w_high = reinterpret_cast<uint16_t*>(shared + layout.weights);
  auto* w_low = w_high + kSliceRows * SliceLayout::kWeightPitch;
  auto* facts = reinterpret_cast<RowFacts*>(shared + layout.facts);
  auto* marks = reinterpret_cast<int*>(shared + layout.marks);
  auto* tops = reinterpret_cast<float*>(shared + layout.tops);
  auto& key_rows = *reinterpret_cast<KeyRows*>(shared + layout.key_rows);

  key_rows.start(a, work);
  const auto head = [&](const Source& source) {
    return source.data + work.place.kv_head * source.head + work.place.batch * source.batch;
  };
  const int first_column = static_cast<int>(blockIdx.y) * layout.width;
  const Range columns{first_column, min(first_column + layout.width, a.e)};
  Slices<32> values{head(a.v), a.v.row, a.v.dtype, columns.end - columns.begin, layout.width};
  values.data = values.slice_of(0, first_column);
  SliceStream stream{.keys = {head(a.k), a.k.row, a.k.dtype, a.d, kSliceColumns},
                     .values = values,
                     .slots = shared + layout.slots,
                     .slot_bytes = layout.slot_bytes,
                     .key_slices = (a.d + kSliceColumns - 1) / kSliceColumns,
                     .last = work.share.tiles.end,
                     .key_rows = key_rows,
                     .tile = work.share.tiles.begin};
  for (int i = 0; i < kSlots - 1; ++i) stream.fetch();
  load_queries<kF16Keys, kSliceWarps, kSliceMostKeys>(a, work.place, kSliceRows, layout.query_pitch, 1, high, low,
                                                      facts);
  if (threadIdx.x < kKeys) marks[threadIdx.x] = -1;

  BlockWarp warp;
  const bool busy = warp.first_row < work.place.rows;  // a warp without rows still helps to copy slices
  const bool gaps = a.mask != nullptr || a.window > 0;
  const RowFacts* rows = facts + warp.first_row + warp.lane / 4;
  int segment = work.share.segments.begin;
#pragma unroll 1
  do {  // also runs if no KV row is visible
    const Range tiles = work.share.tiles_of(segment);
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
      const int* rows_of_tile = key_rows.of(tile);
      float scores[BlockWarp::kKeyTiles][4] = {};
#pragma unroll 1
      for (int first = 0; first < a.d; first += kSliceColumns) {
        const std::byte* slice =
            stream.next([&](std::byte* slot) { stream.keys.prepare(slot, rows_of_tile, first, nullptr, 0); });
        if (!busy) continue;
        warp.multiply_keys(reinterpret_cast<const std::byte*>(high), reinterpret_cast<const std::byte*>(low),
                           layout.query_pitch * 2, stream.keys, slice, first, rows, scores);
      }
      const bool whole = work.sees_whole(a, tile) && !key_rows.has_missing(tile);
      float keep[2] = {1, 1};
      if (busy) {
        BlockWarp::finish_scores(a, scores);
        if (!whole) hide(a, rows, key_rows, tile, warp.first_key(), tile, scores, marks);
        warp.show_largest(scores, tops);
      }
      __syncthreads();
      if (busy) warp.soft_max(scores, tops, w_high, w_low, keep);
      const int* clear = gaps && !whole ? marks : nullptr;  // if set, prepare() zeroes values that no row sees, because
                                                            // 0 * NaN would make the sums NaN
      key_rows.store(tile + 2, KeyRows::find(a, work, tile + 2));
#pragma unroll 1
      for (int key = 0; key < kKeys; key += kSliceKeys) {
        const std::byte* slice = stream.next([&](std::byte* slot) {
          stream.values.prepare(slot, rows_of_tile + key, 0, clear == nullptr ? nullptr : clear + key, tile);
        });
        if (busy) warp.weigh(w_high + key, w_low + key, stream.values, slice, keep);
        keep[0] = keep[1] = 1;
      }
    }
    warp.end_segment(a, work, columns, layout.width, tops, segment);
  } while (++segment < work.share.segments.end);
  copy_async_wait<0>();
  end_rows<kSliceWarps>(a, work, columns, reinterpret_cast<float*>(w_high));
}

/// gridDim.x is the same as for the other attention kernels. gridDim.y is the number of parts of V's columns.
template <bool kF16Keys, bool kF16Values>
__global__ void __launch_bounds__(kSliceThreads, 1) attention_slices(const Arguments a) {
  SHOAL_DYNAMIC_SHARED(std::byte, shared);
  __shared__ Work work;
  let_next_start();
  wait_for_previous();
  for_places(a, [&](const Place& place) {
    if (start_work(a, place, work)) compute_slices<kF16Keys, kF16Values>(a, work, shared);
  });
}

}  // namespace shoal::cuda::attention
