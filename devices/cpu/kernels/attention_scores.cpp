// Products of a few queries with KV rows in their stored type.
#include "devices/cpu/kernels/attention_forms.h"
#include "devices/cpu/kernels/attention_rows.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593 (simd.h)
#endif

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int kQuarters = kLanes / 4;  ///< a quarter is a group of four adjacent lanes

/// In each quarter, lanes 0 and 2 of the result are sums of lanes of `a`, and lanes 1 and 3 are sums of lanes of `b`.
inline F32 add_lanes(F32 a, F32 b) {
  return shuffle(a, b, [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * kLanes; }) +
         shuffle(a, b, [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * kLanes + 2; });
}

/// Lane i of a quarter of the result is the sum of the lanes in this quarter of v[i]: (v[i][0] + v[i][2]) + (v[i][1] +
/// v[i][3]).
inline F32 sums_of_quarters(const F32* v) {
  return add_lanes(add_lanes(v[0], v[2]), add_lanes(v[1], v[3]));
}

/// Quarter i of v[j] becomes quarter j of v[i].
inline void exchange_quarters(F32 (&v)[kQuarters]) {
  if constexpr (kQuarters == 2) {
    const F32 low = shuffle(v[0], v[1], [](int i) { return i % 4 + i / 4 * kLanes; });
    v[1] = shuffle(v[0], v[1], [](int i) { return i % 4 + 4 + i / 4 * kLanes; });
    v[0] = low;
  } else if constexpr (kQuarters == 4) {
    F32 halves[4];
    SHOAL_UNROLL
    for (int i = 0; i < 4; i += 2) {
      halves[i] = shuffle(v[i], v[i + 1], [](int n) { return n % 8 + n / 8 * kLanes; });
      halves[i + 1] = shuffle(v[i], v[i + 1], [](int n) { return n % 8 + 8 + n / 8 * kLanes; });
    }
    SHOAL_UNROLL
    for (int i = 0; i < 2; ++i) {
      v[2 * i] = shuffle(halves[i], halves[i + 2], [](int n) { return n % 4 + n / 4 * 8; });
      v[2 * i + 1] = shuffle(halves[i], halves[i + 2], [](int n) { return n % 4 + n / 4 * 8 + 4; });
    }
  }
}

/// Returns four elements, repeated in all quarters.
inline F32 in_all_quarters(const float* from) {
#if defined(__AVX512F__)
  return (F32)_mm512_broadcast_f32x4(_mm_loadu_ps(from));
#elif defined(__AVX2__)
  return (F32)_mm256_broadcast_ps(reinterpret_cast<const __m128*>(from));
#else
  return load<F32>(from);
#endif
}

/// Computes the dot products of kRows queries with kKeys KV rows. The first query is `row`, and the first KV row is
/// `j`. Each quarter of an accumulator belongs to one KV row. The KV rows form kGroups groups of kQuarters rows.
template <class Kv, int kRows, bool kRest>
struct ScoreTile {
  static constexpr int kSums = kLanes == 4 ? 4 : kLanes == 16 && kRows == 8 ? 16 : 8;
  static constexpr int kGroups = kSums / kRows < 4 ? kSums / kRows : 4;
  static constexpr int kKeys = kGroups * kQuarters;

  /// Adds the products of kLanes elements. Elements 4c to 4c + 3 of a KV row are in quarter c of the row's vector, and
  /// at q + 4c.
  static void add(F32 (&keys)[kGroups][kQuarters], const float* q, int64_t q_stride, F32 (&sums)[kRows][kGroups]) {
    SHOAL_UNROLL
    for (int g = 0; g < kGroups; ++g) exchange_quarters(keys[g]);
    SHOAL_UNROLL
    for (int c = 0; c < kQuarters; ++c) {
      SHOAL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F32 query = in_all_quarters(q + r * q_stride + 4 * c);
        SHOAL_UNROLL
        for (int g = 0; g < kGroups; ++g) sums[r][g] = multiply_add(query, keys[g][c], sums[r][g]);
      }
    }
  }

  static void run(const RowScores& args, int64_t row, int64_t j) {
    const std::byte* keys[kGroups][kQuarters];
    SHOAL_UNROLL
    for (int k = 0; k < kKeys; ++k) {
      const int64_t at = j + k < args.keys.count ? j + k : args.keys.count - 1;
      keys[k % kGroups][k / kGroups] = args.keys.data + at * args.keys.stride;
    }
    const float* q = args.q + row * args.q_stride;
    F32 sums[kRows][kGroups] = {};
    const int64_t vectors = args.keys.length / kLanes, rest = args.keys.length % kLanes;
    for (int64_t v = 0; v < vectors; v += Kv::kStep) {
      typename Kv::Scale scales[kGroups][kQuarters];
      SHOAL_UNROLL
      for (int k = 0; k < kKeys; ++k) {
        const int g = k / kQuarters, c = k % kQuarters;
        scales[g][c] = Kv::scale(keys[g][c], v);
      }
      SHOAL_UNROLL
      for (int step = 0; step < Kv::kStep; ++step) {
        F32 values[kGroups][kQuarters];
        SHOAL_UNROLL
        for (int k = 0; k < kKeys; ++k) {
          const int g = k / kQuarters, c = k % kQuarters;
          values[g][c] = Kv::load(keys[g][c], v + step, scales[g][c]);
        }
        add(values, q + (v + step) * kLanes, args.q_stride, sums);
      }
    }
    if constexpr (kRest) {
      float queries[kRows * kLanes];
      SHOAL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        store(queries + r * kLanes, load_first<RowsF32>(q + r * args.q_stride + vectors * kLanes, rest));
      }
      F32 values[kGroups][kQuarters];
      SHOAL_UNROLL
      for (int k = 0; k < kKeys; ++k) {
        const int g = k / kQuarters, c = k % kQuarters;
        values[g][c] = Kv::load_rest(keys[g][c], vectors, rest);
      }
      add(values, queries, kLanes, sums);
    }
    write(args, row, j, sums[0]);
  }

  static void write(const RowScores& args, int64_t row, int64_t j, const F32* sums) {
    float scores[kRows * kGroups * kQuarters];
    SHOAL_UNROLL
    for (int i = 0; i < kRows * kGroups; i += 4) store(scores + i * kQuarters, sums_of_quarters(sums + i));
    SHOAL_UNROLL
    for (int i = 0; i < kRows * kGroups; i += kGroups) {
      float* to = args.scores + (row + i / kGroups) * kAttentionBlock + j;
      SHOAL_UNROLL
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        const float* from = scores + i / 4 * kLanes + quarter * 4 + i % 4;
        const int64_t first = quarter * kGroups;
        if (j + first + kGroups <= args.keys.count) {
          __builtin_memcpy(to + first, from, kGroups * sizeof(float));
        } else {
          for (int64_t k = first; j + k < args.keys.count; ++k) to[k] = from[k - first];
        }
      }
    }
  }
};

/// Processes the rows in tiles of kRows. Smaller tiles process the remaining rows. kRest means that the length of a KV
/// row is not a multiple of kLanes.
template <class Kv, int kRows, bool kRest>
void score_rows(const RowScores& args, int64_t row) {
  for (; row + kRows <= args.rows; row += kRows) {
    using Tile = ScoreTile<Kv, kRows, kRest>;
    for (int64_t j = 0; j < args.keys.count; j += Tile::kKeys) Tile::run(args, row, j);
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
