// Weighted sums of KV rows for a few queries. The KV rows have their stored type.
#include "devices/cpu/kernels/attention_forms.h"
#include "devices/cpu/kernels/attention_rows.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

inline bool is_hidden(float weight) {
  return __builtin_signbit(weight);
}

/// Updates vectors [v, v + kVectors) of the sums of kRows rows. The first row is `row`. The sums stay in registers
/// during the loop over KV rows.
template <class Kv, int kRows, int kVectors, bool kHidden>
inline void sum_tile(const RowSums& args, int64_t row, int64_t v) {
  float* sums_at = args.sums + row * args.sums_stride + v * kLanes;
  const float* weights = args.weights + row * kAttentionBlock;
  F32 sums[kRows][kVectors];
  SHOAL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    SHOAL_UNROLL
    for (int c = 0; c < kVectors; ++c) {
      sums[r][c] = load<F32>(sums_at + r * args.sums_stride + c * kLanes) * splat(args.keep[row + r]);
    }
  }
  const std::byte* values = args.values.data;
  for (int64_t j = 0; j < args.values.count; ++j, values += args.values.stride) {
    if (kHidden && is_hidden(weights[j])) continue;
    SHOAL_UNROLL
    for (int c = 0; c < kVectors; ++c) {
      const F32 value = Kv::load(values, v + c, Kv::scale(values, v + c));
      SHOAL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sums[r][c] = multiply_add(splat(weights[r * kAttentionBlock + j]), value, sums[r][c]);
      }
    }
  }
  SHOAL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    SHOAL_UNROLL
    for (int c = 0; c < kVectors; ++c) store(sums_at + r * args.sums_stride + c * kLanes, sums[r][c]);
  }
}

/// Updates the sums of the elements after the last whole vector.
template <class Kv>
void sum_rest(const RowSums& args, int64_t row, int64_t v, int64_t rest) {
  float* sums_at = args.sums + row * args.sums_stride + v * kLanes;
  const float* weights = args.weights + row * kAttentionBlock;
  F32 sums = load_first<RowsF32>(sums_at, rest) * splat(args.keep[row]);
  for (int64_t j = 0; j < args.values.count; ++j) {
    if (is_hidden(weights[j])) continue;
    const F32 value = Kv::load_rest(args.values.data + j * args.values.stride, v, rest);
    sums = multiply_add(splat(weights[j]), value, sums);
  }
  store_first(sums_at, sums, rest);
}

template <class Kv, int kRows, int kVectors, bool kHidden>
inline void sum_columns(const RowSums& args, int64_t row, int64_t v, int64_t vectors) {
  for (; v + kVectors <= vectors; v += kVectors) sum_tile<Kv, kRows, kVectors, kHidden>(args, row, v);
  if constexpr (kVectors > 1) sum_columns<Kv, kRows, kVectors / 2, kHidden>(args, row, v, vectors);
}

/// Processes the rows in tiles of kRows. Smaller tiles process the remaining rows. A tile fills about half of the
/// registers.
template <class Kv, int kRows, bool kHidden>
void sum_rows(const RowSums& args, int64_t row) {
  constexpr int kTile = kLanes == 16 ? 16 : 8;
  constexpr int kVectors = kTile / kRows < 8 ? kTile / kRows : 8;
  const int64_t vectors = args.values.length / kLanes, rest = args.values.length % kLanes;
  for (; row + kRows <= args.rows; row += kRows) {
    sum_columns<Kv, kRows, kVectors, kHidden>(args, row, 0, vectors);
    for (int r = 0; rest > 0 && r < kRows; ++r) sum_rest<Kv>(args, row + r, vectors, rest);
  }
  if constexpr (kRows > 1) sum_rows<Kv, kRows / 2, kHidden>(args, row);
}

}  // namespace

template <class Kv>
void row_sums(const RowSums& args) {
  args.hidden ? sum_rows<Kv, 1, true>(args, 0) : sum_rows<Kv, 8, false>(args, 0);
}

template void row_sums<KvFloats<RowsF32>>(const RowSums&);
template void row_sums<KvFloats<RowsF16>>(const RowSums&);
template void row_sums<KvFloats<RowsBF16>>(const RowSums&);
template void row_sums<KvQ8_0>(const RowSums&);
template void row_sums<KvBlocks<Q4_0>>(const RowSums&);
template void row_sums<KvBlocks<Q4_1>>(const RowSums&);
template void row_sums<KvBlocks<Q5_0>>(const RowSums&);
template void row_sums<KvBlocks<Q5_1>>(const RowSums&);
template void row_sums<KvBlocks<IQ4_NL>>(const RowSums&);

}  // namespace shoal::cpu::SHOAL_ISA
