// Code that several attention kernels share. These kernels use tensor cores and represent numbers as sums of two 16-bit
// floats. The code loads a block's queries as such sums and masks the keys that the block's rows do not see.
#pragma once

#include <bit>
#include <cstring>

#include "devices/cuda/kernels/attention_keys.h"
#include "devices/cuda/kernels/attention_merge.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/mma.h"

namespace shoal::cuda::attention {

__device__ inline uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// A pair of numbers. Each number is the sum of a 16-bit float in `high` and a 16-bit rounding error in `low`.
struct Split {
  uint32_t high, low;
};
template <bool kF16>
__device__ inline Split split(float x, float y) {
  if constexpr (kF16) {
    const __half2 pair = __floats2half2_rn(x, y);
    const float2 rounded = __half22float2(pair);
    uint32_t high;
    memcpy(&high, &pair, sizeof high);
    return {high, pack_f16(x - rounded.x, y - rounded.y)};
  } else {
    const uint32_t high = pack_bf16(x, y);
    return {high, pack_bf16(x - std::bit_cast<float>(high << 16), y - std::bit_cast<float>(high & 0xffff0000u))};
  }
}
template <bool kF16>
__device__ inline void multiply(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kF16) {
    mma_f16(sums, a, b);
  } else {
    mma_bf16(sums, a, b);
  }
}
/// Multiplies `high` and `low` by two tiles of `b` with 8 columns each. Adds the products of the first tile to `left`,
/// and the products of the second tile to `right`.
template <bool kF16>
__device__ inline void multiply_split(float (&left)[4], float (&right)[4], const uint32_t (&high)[4],
                                      const uint32_t (&low)[4], const uint32_t (&b)[4]) {
  multiply<kF16>(left, high, {b[0], b[1]});
  multiply<kF16>(right, high, {b[2], b[3]});
  multiply<kF16>(left, low, {b[0], b[1]});
  multiply<kF16>(right, low, {b[2], b[3]});
}

/// A power of two (`up`) and its inverse (`down`). power_for() chooses `up` so that largest * up is in [128, 256), the
/// middle of f16's range. `up` and `down` are 1 if `largest` is infinite or NaN.
struct Power {
  float up, down;
};
__device__ inline Power power_for(float largest) {
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23);
  const uint32_t up = exponent == 255 ? 127 : min(261 - exponent, 253);
  return {std::bit_cast<float>(up << 23), std::bit_cast<float>((254 - up) << 23)};
}

/// Properties of one row of a block, in shared memory.
struct __align__(16) RowFacts {
  float factor;    ///< converts products to scores
  int begin, end;  ///< visible keys
  int query;
};

/// Loads a block's queries (at most kColumns columns) as high and low parts, and stores a RowFacts for each row.
template <bool kF16, int kBlockWarps, int kColumns>
__device__ inline void load_queries(const Arguments& a, const Place& place, int rows, int pitch, float scale,
                                    uint16_t* high, uint16_t* low, RowFacts* facts) {
  constexpr int kPairs = (kColumns + 63) / 64;  // number of pairs of columns per lane
  const auto thread = static_cast<int>(kept(threadIdx.x));
  const int lane = thread % 32, columns = (a.d + 15) / 16 * 16;
#pragma unroll 1
  for (int row = thread / 32; row < rows; row += kBlockWarps) {
    const bool exists = row < place.rows;
    const int at = place.first_row + (exists ? row : 0);
    const std::byte* query =
        a.q.data + query_of(a, at) * a.q.row + head_of(a, place.kv_head, at) * a.q.head + place.batch * a.q.batch;
    query += 2 * lane * a.q.element;
    float pairs[kPairs][2] = {}, largest = 0;
#pragma unroll
    for (int j = 0; j < kPairs; ++j, query += 64 * a.q.element) {
      const int left = exists ? a.d - 2 * lane - 64 * j : 0;
      if (left > 0) pairs[j][0] = load_as<float>(query);
      if (left > 1) pairs[j][1] = load_as<float>(query + a.q.element);
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) largest = fmaxf(largest, fmaxf(fabsf(pairs[j][0]), fabsf(pairs[j][1])));
    for (int lanes = 16; lanes > 0; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    const Power power = power_for(largest);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (2 * lane + 64 * j >= columns) break;
      const Split parts = split<kF16>(pairs[j][0] * power.up, pairs[j][1] * power.up);
      store_as<uint32_t>(high + row * pitch + 2 * lane + 64 * j, parts.high);
      store_as<uint32_t>(low + row * pitch + 2 * lane + 64 * j, parts.low);
    }
    if (lane == 0) {
      const Range range = exists ? visible(a, place, query_of(a, at)) : Range{};
      facts[row] = {power.down * scale, range.begin, range.end, query_of(a, at)};
    }
  }
}

/// Calls f(n, values[n]) for all n in a loop that is not unrolled. The compiled code contains f only once, at the cost
/// of one move per value.
template <int kCount, int kEach, class F>
__device__ inline void in_turns(float (&values)[kCount][kEach], const F& f) {
#pragma unroll 1
  for (int n = 0; n < kCount; ++n) {
    f(n, values[0]);
    float first[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      first[i] = values[0][i];
#pragma unroll
      for (int j = 0; j + 1 < kCount; ++j) values[j][i] = values[j + 1][i];
      values[kCount - 1][i] = first[i];
    }
  }
}

template <int kTiles>
__device__ inline void soft_cap(const Arguments& a, float (&scores)[kTiles][4]) {
  if (a.softcap <= 0) return;
  in_turns(scores, [&](int, float(&of_tile)[4]) {
    for (float& score : of_tile) score = soft_cap(a, score);
  });
}

/// Sets the scores of invisible keys to -infinity. The lane's keys start at tile * kKeys + first. If a row sees a key,
/// sets seen[key - tile * kKeys] to `mark`. `facts` points to the RowFacts of the lane's first row.
template <int kTiles>
__device__ inline void hide(const Arguments& a, const RowFacts* facts, const KeyRows& key_rows, int tile, int first,
                            int mark, float (&scores)[kTiles][4], int* seen) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const RowFacts rows[2] = {facts[0], facts[8]};
  in_turns(scores, [&](int n, float(&of_tile)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = first + n * 8 + lane % 4 * 2 + i % 2, key = tile * kKeys + column;
      const RowFacts& row = rows[i / 2];
      const bool in_range = key >= row.begin && key < row.end && key_rows.of(tile)[column] >= 0;
      if (!in_range) of_tile[i] = kMinusInfinity;
      if (in_range && a.mask != nullptr) of_tile[i] = add_mask(a, row.query, key, of_tile[i]);
      if (of_tile[i] != kMinusInfinity) seen[column] = mark;
    }
  });
}

/// Accesses two neighbouring elements. Some rows of the result are unaligned if the result includes an lse.
__device__ inline bool has_pairs(const float* row) {
  return reinterpret_cast<uintptr_t>(row) % sizeof(float2) == 0;
}
__device__ inline float2 load_pair(const float* at, bool is_aligned) {
  return is_aligned ? load_as<float2>(at) : float2{at[0], at[1]};
}
__device__ inline void store_pair(float* at, float2 pair, bool is_aligned) {
  if (is_aligned) {
    store_as<float2>(at, pair);
  } else {
    at[0] = pair.x, at[1] = pair.y;
  }
}

/// The columns [begin, end) of a block's rows that a warp computes. A lane holds columns 8 n + 2 (lane % 4) + {0, 1},
/// relative to `begin`, of the rows first_row + lane / 4 + {0, 8}.
struct Span {
  int lane, first_row, begin, end;
  bool stores_rows;  ///< whether the warp stores the properties of its rows that do not depend on the column

  __device__ int row(int i) const { return first_row + lane / 4 + 8 * i; }
  __device__ int column(int n) const { return begin + n * 8 + lane % 4 * 2; }
  __device__ bool stores_row() const { return stores_rows && lane % 4 == 0; }
};

/// Largest score and sum of the weights over several segments, for the lane's two rows.
struct Totals {
  float top[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {0, 0};
};

/// Sums over the KV rows of a segment, for the lane's two rows.
template <int kTiles>
struct TwoRows {
  static constexpr int kChunk = 16;  ///< number of pairs of columns that add_to_result() loads together
  float top[2], sum[2], values[kTiles][4];

  __device__ TwoRows() { clear(); }
  __device__ void clear() {
#pragma unroll
    for (int row = 0; row < 2; ++row) top[row] = kMinusInfinity, sum[row] = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[n][i] = 0;
    }
  }
  /// Undoes the scaling of the weights.
  __device__ void multiply(float by) {
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] *= by;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[n][i] *= by;
    }
  }
  /// Replaces the lane's first row by its second row.
  __device__ void next() {
    top[0] = top[1], sum[0] = sum[1];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) values[n][0] = values[n][2], values[n][1] = values[n][3];
  }
  /// Ends a segment. If the block is alone, the segment is added to the total, which becomes the result after the last
  /// segment. Otherwise, the partial result of the segment is stored. Afterwards, the segment is empty.
  __device__ void end(const Arguments& a, const Work& work, const Span& span, Totals& totals, int segment) {
    const Range segments = work.share.segments;
    if (work.alone()) {
      add_to_result(a, work.place, span, totals, segment == segments.begin, segment + 1 >= segments.end);
    } else if (segment < segments.end) {
      store_partial(a, work.place, segment, span);
    }
    clear();
  }

 private:
  /// Stores the partial result of a segment. Afterwards, the sums are no longer valid.
  __device__ void store_partial(const Arguments& a, const Place& place, int segment, const Span& span) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i, next()) {
      if (span.row(i) >= place.rows) continue;
      float* const to =
          start_partial(a, place, segment, place.first_row + span.row(i), top[0], sum[0], span.stores_row());
      const bool pairs = has_pairs(to);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (span.begin + n * 8 >= span.end) break;
        store_pair(to + span.column(n), float2{values[n][0], values[n][1]}, pairs);
      }
    }
  }
  /// Adds the segment to the total. The result's memory holds the weighted values of the total. Afterwards, the sums of
  /// the segment are no longer valid.
  __device__ void add_to_result(const Arguments& a, const Place& place, const Span& span, Totals& totals, bool is_first,
                                bool is_last) {
    Factors factors[2];
    float by[2] = {1, 1};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factors[i] = add_top(totals.top[i], top[i]);
      totals.sum[i] = factors[i].apply(totals.sum[i], sum[i]);
      if (!is_last || span.row(i) >= place.rows) continue;
      by[i] = end_row(a, place, place.first_row + span.row(i), totals.top[i], totals.sum[i], span.stores_row());
    }
#pragma unroll 1
    for (int i = 0; i < 2; ++i, next(), factors[0] = factors[1], by[0] = by[1]) {
      if (span.row(i) >= place.rows) continue;
      float* to = result_of(a, place, place.first_row + span.row(i));
      const bool pairs = has_pairs(to);
#pragma unroll
      for (int first = 0; first < kTiles; first += kChunk) {
        float2 old[kChunk] = {};
        to = kept(to);  // the compiler then does not move these loads before the stores of the previous chunk, which
                        // would need more registers
#pragma unroll
        for (int n = first; n < kTiles && n < first + kChunk; ++n) {
          if (span.begin + n * 8 >= span.end) break;
          if (!is_first) old[n - first] = load_pair(to + span.column(n), pairs);
        }
#pragma unroll
        for (int n = first; n < kTiles && n < first + kChunk; ++n) {
          if (span.begin + n * 8 >= span.end) break;
          const float2 sum{factors[0].apply(old[n - first].x, values[n][0]),
                           factors[0].apply(old[n - first].y, values[n][1])};
          store_pair(to + span.column(n), float2{sum.x * by[0], sum.y * by[0]}, pairs);
        }
      }
    }
  }
};

}  // namespace shoal::cuda::attention
