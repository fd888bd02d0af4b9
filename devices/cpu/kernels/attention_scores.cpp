// Products of a few queries with KV rows as they are stored.
#include "devices/cpu/kernels/attention_forms.h"
#include "devices/cpu/kernels/attention_rows.h"
#include "devices/cpu/kernels/transpose.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

/// Lane i: the sum of the lanes of v[i], by halves as sum_lanes().
inline F32 sums_of(F32 (&v)[kLanes]) {
  SHOAL_UNROLL
  for (int half = kLanes / 2; half > 0; half /= 2) {
    SHOAL_UNROLL
    for (int i = 0; i < half; ++i) {
      const I32 a = bits_as<I32>(v[i]), b = bits_as<I32>(v[i + half]);
      v[i] = bits_as<F32>(interleave_low(a, b)) + bits_as<F32>(interleave_high(a, b));
    }
  }
  return v[0];
}

/// kRows queries from `row` on with as many KV rows as give a vector of scores, from j on.
template <class Kv, int kRows>
inline void score_tile(const RowScores& args, int64_t row, int64_t j) {
  constexpr int kKeys = kLanes / kRows;
  const std::byte* keys[kKeys];
  SHOAL_UNROLL
  for (int k = 0; k < kKeys; ++k) {
    const int64_t at = j + k < args.keys.count ? j + k : args.keys.count - 1;
    keys[k] = args.keys.data + at * args.keys.stride;
  }
  const float* q = args.q + row * args.q_stride;
  F32 sums[kLanes] = {};
  const int64_t vectors = args.keys.length / kLanes, rest = args.keys.length % kLanes;
  for (int64_t v = 0; v < vectors; v += Kv::kStep) {
    typename Kv::Scale scales[kKeys];
    SHOAL_UNROLL
    for (int k = 0; k < kKeys; ++k) scales[k] = Kv::scale(keys[k], v);
    SHOAL_UNROLL
    for (int step = 0; step < Kv::kStep; ++step) {
      F32 queries[kRows];
      SHOAL_UNROLL
      for (int r = 0; r < kRows; ++r) queries[r] = load<F32>(q + r * args.q_stride + (v + step) * kLanes);
      SHOAL_UNROLL
      for (int k = 0; k < kKeys; ++k) {
        const F32 key = Kv::load(keys[k], v + step, scales[k]);
        SHOAL_UNROLL
        for (int r = 0; r < kRows; ++r) sums[r * kKeys + k] = multiply_add(queries[r], key, sums[r * kKeys + k]);
      }
    }
  }
  for (int k = 0; rest > 0 && k < kKeys; ++k) {
    const F32 key = Kv::load_rest(keys[k], vectors, rest);
    for (int r = 0; r < kRows; ++r) {
      const F32 query = load_first<RowsF32>(q + r * args.q_stride + vectors * kLanes, rest);
      sums[r * kKeys + k] = multiply_add(query, key, sums[r * kKeys + k]);
    }
  }
  float scores[kLanes];
  store(scores, sums_of(sums));
  SHOAL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    float* to = args.scores + (row + r) * kAttentionBlock + j;
    if (j + kKeys <= args.keys.count) {
      __builtin_memcpy(to, scores + r * kKeys, kKeys * sizeof(float));
    } else {
      for (int k = 0; j + k < args.keys.count; ++k) to[k] = scores[r * kKeys + k];
    }
  }
}

/// Rows in tiles of kRows, then of fewer.
template <class Kv, int kRows>
void score_rows(const RowScores& args, int64_t row) {
  for (; row + kRows <= args.rows; row += kRows) {
    for (int64_t j = 0; j < args.keys.count; j += kLanes / kRows) score_tile<Kv, kRows>(args, row, j);
  }
  if constexpr (kRows > 1) score_rows<Kv, kRows / 2>(args, row);
}

}  // namespace

template <class Kv>
void row_scores(const RowScores& args) {
  score_rows < Kv, kLanes<8 ? kLanes : 8>(args, 0);
}

template void row_scores<KvFloats<RowsF32>>(const RowScores&);
template void row_scores<KvFloats<RowsF16>>(const RowScores&);
template void row_scores<KvFloats<RowsBF16>>(const RowScores&);
template void row_scores<KvQ8_0>(const RowScores&);

}  // namespace shoal::cpu::SHOAL_ISA
