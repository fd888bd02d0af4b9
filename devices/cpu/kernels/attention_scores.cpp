// Products of a few queries with KV rows in their stored type.
#include "devices/cpu/kernels/attention_forms.h"
#include "devices/cpu/kernels/attention_rows.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

// add_lanes and add_quarters merge the vectors `a` and `b` into one vector. Each lane of the result is the sum of two
// lanes of `a` or of two lanes of `b`. Both functions need only cheap shuffles.
// - add_lanes adds lanes within each quarter. A quarter has four lanes. Sums of `a` and sums of `b` alternate in the
//   result.
// - add_quarters adds pairs of whole quarters. In the result, the sums of `a` precede the sums of `b`.
inline F32 add_lanes(F32 a, F32 b) {
  return shuffle(a, b, [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * kLanes; }) +
         shuffle(a, b, [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * kLanes + 2; });
}
inline F32 add_quarters(F32 a, F32 b) {
  return shuffle(a, b, [](int i) { return i / 4 * 8 + i % 4; }) +
         shuffle(a, b, [](int i) { return i / 4 * 8 + i % 4 + 4; });
}

/// Lane i of the result is the sum of the lanes of v[i].
inline F32 sums_of(const F32 (&v)[kLanes]) {
  F32 quarters[kLanes / 4];
  SHOAL_UNROLL
  for (int i = 0; i < kLanes / 4; ++i) {
    quarters[i] = add_lanes(add_lanes(v[4 * i], v[4 * i + 2]), add_lanes(v[4 * i + 1], v[4 * i + 3]));
  }
  SHOAL_UNROLL
  for (int n = kLanes / 8; n > 0; n /= 2) {
    SHOAL_UNROLL
    for (int i = 0; i < n; ++i) quarters[i] = add_quarters(quarters[2 * i], quarters[2 * i + 1]);
  }
  return quarters[0];
}

/// Computes one vector of scores: the dot product of each of kRows queries with each of kLanes / kRows KV rows. The
/// first query is `row`, and the first KV row is `j`.
template <class Kv, int kRows, bool kRest>
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
  SHOAL_UNROLL
  for (int k = 0; kRest && k < kKeys; ++k) {
    const F32 key = Kv::load_rest(keys[k], vectors, rest);
    SHOAL_UNROLL
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

/// Processes the rows in tiles of kRows. Smaller tiles process the remaining rows. kRest means that the length of a KV
/// row is not a multiple of kLanes.
template <class Kv, int kRows, bool kRest>
void score_rows(const RowScores& args, int64_t row) {
  for (; row + kRows <= args.rows; row += kRows) {
    for (int64_t j = 0; j < args.keys.count; j += kLanes / kRows) score_tile<Kv, kRows, kRest>(args, row, j);
  }
  if constexpr (kRows > 1) score_rows<Kv, kRows / 2, kRest>(args, row);
}

}  // namespace

template <class Kv>
void row_scores(const RowScores& args) {
  constexpr int kRows = kLanes == 4 ? 4 : 8;
  args.keys.length % kLanes ? score_rows<Kv, kRows, true>(args, 0) : score_rows<Kv, kRows, false>(args, 0);
}

template void row_scores<KvFloats<RowsF32>>(const RowScores&);
template void row_scores<KvFloats<RowsF16>>(const RowScores&);
template void row_scores<KvFloats<RowsBF16>>(const RowScores&);
template void row_scores<KvQ8_0>(const RowScores&);
template void row_scores<KvBlocks<Q4_0>>(const RowScores&);
template void row_scores<KvBlocks<Q4_1>>(const RowScores&);
template void row_scores<KvBlocks<Q5_0>>(const RowScores&);
template void row_scores<KvBlocks<Q5_1>>(const RowScores&);
template void row_scores<KvBlocks<IQ4_NL>>(const RowScores&);

}  // namespace shoal::cpu::SHOAL_ISA
