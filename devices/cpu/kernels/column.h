// Columns as kernels read them, see Columns in kernels.h.
//
// A column of bytes: each 32 elements have an f32 scale, and each element two signed bytes:
//
//   x[i] ~ (values[i] + fine[i] / 256) * scales[i / 32]
//
// Panels take the first byte alone (8 bits); dots take both (16 bits), which memory-bound products get for nothing.
// With them, for every 32 and every 16 elements: the sums of the elements as each of the two sees them, which addends
// of weights are multiplied by; what a panel's integer sums start from, -kStartUnit times the sum of the values (see
// quad_dot.h); and the sum of 256 values[i] + fine[i].
//
// A column of words: x[i] ~ values[i] * scales[i / 32], |values[i]| <= kWord, zeros behind the last element up to
// a multiple of 32. An outlier would take the bits of its 31 neighbours: it is zero there and listed behind the scales
// as f32. Outliers are up to kMostOutliers of 32 elements if all others are smaller than theirs by more than
// kOutlierRatio, and the list of a column has room for a few (most_outliers):
//
//   1000 2 -1 0.5 ...: the outlier 1000, and the words of 0 2 -1 0.5 ... with the scale 2 / 8191
//   1000 100 -1 0.5 ...: two outliers, and the scale 1 / 8191
//
// 32 elements of which one is not finite have a scale of NaN and zeros as values in both: the column's products are
// NaN.
#pragma once

#include "devices/cpu/kernels/quad_dot.h"

namespace shoal::cpu::SHOAL_ISA {

/// Starts of the arrays, which lie one behind the other in this order.
template <class Byte, class Float, class Int>
struct ColumnOf {
  Byte *values, *fine;
  Float *scales, *sums, *fine_sums;   ///< per 32 elements
  Float *half_sums, *fine_half_sums;  ///< per 16
  Int *starts, *totals;               ///< per 32
  Int *half_starts, *half_totals;     ///< per 16
};
using Column = ColumnOf<const int8_t, const float, const int32_t>;
using NewColumn = ColumnOf<int8_t, float, int32_t>;

inline NewColumn new_column_at(std::byte* at, int64_t k) {
  const int64_t n = k / 32;
  auto* values = reinterpret_cast<int8_t*>(at);
  auto* floats = reinterpret_cast<float*>(at + 2 * k);
  auto* integers = reinterpret_cast<int32_t*>(floats + 7 * n);
  return {values,         values + k, floats,       floats + n,       floats + 2 * n,  floats + 3 * n,
          floats + 5 * n, integers,   integers + n, integers + 2 * n, integers + 4 * n};
}

/// The column at `at`, from element k_begin (a multiple of 32) of k_total on.
inline Column column_at(const std::byte* at, int64_t k_total, int64_t k_begin = 0) {
  const NewColumn c = new_column_at(const_cast<std::byte*>(at), k_total);
  const int64_t part = k_begin / 32, half = k_begin / 16;
  return {c.values + k_begin, c.fine + k_begin,     c.scales + part,         c.sums + part,
          c.fine_sums + part, c.half_sums + half,   c.fine_half_sums + half, c.starts + part,
          c.totals + part,    c.half_starts + half, c.half_totals + half};
}

size_t column_bytes(int64_t k);
void quantize(const float* x, std::byte* column, int64_t k);

/// Largest magnitude of a word: the sum of 32 products fits into 32 bits.
inline constexpr int kWord = 8191;

struct WordColumn {
  const int16_t* values;
  const float* scales;
};
inline int64_t word_parts(int64_t k) {
  return (k + 31) / 32;
}
/// As column_at.
inline WordColumn word_column_at(const std::byte* at, int64_t k_total, int64_t k_begin = 0) {
  const auto* values = reinterpret_cast<const int16_t*>(at);
  return {values + k_begin, reinterpret_cast<const float*>(values + 32 * word_parts(k_total)) + k_begin / 32};
}

inline constexpr int kMostOutliers = 4;
/// The smallest of the others keep 9 bits: rounding adds 2e-6 of their squares.
inline constexpr float kOutlierRatio = 16;

/// Room of a column's list. A full list leaves the outliers of later elements where they are.
inline int64_t most_outliers(int64_t k) {
  return kMostOutliers / 2 + word_parts(k) / 8;
}

struct Outlier {
  int32_t at;  ///< element of the column
  float value;
};
template <class Count, class One>
struct OutliersOf {
  Count* count;
  One* first;  ///< in the order of their parts
};
using Outliers = OutliersOf<const int32_t, const Outlier>;
using NewOutliers = OutliersOf<int32_t, Outlier>;

inline NewOutliers new_outliers_of(std::byte* column, int64_t k) {
  auto* count = reinterpret_cast<int32_t*>(column + word_parts(k) * (32 * 2 + 4));
  return {count, reinterpret_cast<Outlier*>(count + 1)};
}
inline Outliers outliers_of(const std::byte* column, int64_t k) {
  const NewOutliers outliers = new_outliers_of(const_cast<std::byte*>(column), k);
  return {outliers.count, outliers.first};
}

size_t word_column_bytes(int64_t k);
void quantize_words(const float* x, std::byte* column, int64_t k);

size_t float_column_bytes(int64_t k);
void copy_floats(const float* x, std::byte* column, int64_t k);

/// Numbers below this are zero: the inverse of their scale would overflow.
inline constexpr float kTiny = 1e-30f;
/// The bits of the largest number; those of infinity and NaN without sign are above.
inline constexpr int32_t kLargestFinite = 0x7f7fffff;

}  // namespace shoal::cpu::SHOAL_ISA
