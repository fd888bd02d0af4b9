// Columns in the layout that kernels read; see Columns in kernels.h.
//
// In a column of bytes, 32 consecutive elements share one f32 scale. Each element is stored as a signed byte:
//
//   x[i] ~ values[i] * scales[i / 32]
//
// The column also stores precomputed numbers for every 32 elements and for every 16 elements:
//
// - The sums of the elements. Addends of weights are multiplied by these sums.
// - The initial value of integer sums, which is -kStartUnit times the sum of the values (see quad_dot.h).
//
// In a column of words, x[i] ~ values[i] * scales[i / 32] with |values[i]| <= kWord. Zeros pad the column to a multiple
// of 32. An outlier would reduce the precision of the other 31 elements. So the word of an outlier is zero, and a list
// after the scales stores the outlier as f32. Up to kMostOutliers of 32 elements can be outliers. All remaining
// elements must be more than kOutlierRatio times smaller than the largest element. The list of a column can hold a few
// outliers (most_outliers). Examples:
//
//   1000 2 -1 0.5 ...: the outlier 1000, and the words of 0 2 -1 0.5 ... with the scale 2 / 8191
//   1000 100 -1 0.5 ...: two outliers, and the scale 1 / 8191
//
// If one of 32 elements is not finite, the scale of the 32 elements is NaN and their values are zero. So the products
// of the column are NaN. This rule holds for columns of bytes and for columns of words.
#pragma once

#include "devices/cpu/kernels/quad_dot.h"

namespace shoal::cpu::SHOAL_ISA {

/// Pointers to the arrays of a column. In memory, the arrays follow each other in this order.
template <class Byte, class Float, class Int>
struct ColumnOf {
  Byte* values;
  Float *scales, *sums;  ///< one per 32 elements
  Float* half_sums;      ///< one per 16 elements
  Int* starts;           ///< one per 32 elements
  Int* half_starts;      ///< one per 16 elements
};
using Column = ColumnOf<const int8_t, const float, const int32_t>;
using NewColumn = ColumnOf<int8_t, float, int32_t>;

inline NewColumn new_column_at(std::byte* at, int64_t k) {
  const int64_t n = k / 32;
  auto* values = reinterpret_cast<int8_t*>(at);
  auto* floats = reinterpret_cast<float*>(at + k);
  auto* integers = reinterpret_cast<int32_t*>(floats + 4 * n);
  return {values, floats, floats + n, floats + 2 * n, integers, integers + n};
}

/// Returns pointers to the data of a column from element k_begin on. k_begin is a multiple of 32. The whole column at
/// `at` has k_total elements.
inline Column column_at(const std::byte* at, int64_t k_total, int64_t k_begin = 0) {
  const NewColumn c = new_column_at(const_cast<std::byte*>(at), k_total);
  const int64_t part = k_begin / 32, half = k_begin / 16;
  return {c.values + k_begin, c.scales + part, c.sums + part,
          c.half_sums + half, c.starts + part, c.half_starts + half};
}

/// Returns the initial integer sums of a part or of a half, from Column::starts or Column::half_starts. kOffset is the
/// offset that the stored weights contain.
template <int kOffset>
inline I32 start_sums(int32_t start) {
  if constexpr (kOffset == 0) {
    return I32{};
  } else if constexpr (kOffset % kStartUnit == 0) {
    return splat(start) * (kOffset / kStartUnit);
  } else {
    return splat(start / kStartUnit * kOffset);
  }
}

size_t column_bytes(int64_t k);
void quantize(const float* x, std::byte* column, int64_t k);

/// Largest magnitude of a word. With this limit, the sum of 32 products of words fits into 32 bits.
inline constexpr int kWord = 8191;

struct WordColumn {
  const int16_t* values;
  const float* scales;
};
inline int64_t word_parts(int64_t k) {
  return (k + 31) / 32;
}
/// Like column_at, for a column of words.
inline WordColumn word_column_at(const std::byte* at, int64_t k_total, int64_t k_begin = 0) {
  const auto* values = reinterpret_cast<const int16_t*>(at);
  return {values + k_begin, reinterpret_cast<const float*>(values + 32 * word_parts(k_total)) + k_begin / 32};
}

inline constexpr int kMostOutliers = 4;
/// If an element is smaller than the largest element by at most this factor, the element's word keeps at least 9
/// significant bits. Rounding then adds a relative squared error of 2e-6.
inline constexpr float kOutlierRatio = 16;

/// Capacity of a column's list of outliers. When the list is full, later outliers stay in the words.
inline int64_t most_outliers(int64_t k) {
  return kMostOutliers / 2 + word_parts(k) / 8;
}

struct Outlier {
  int32_t at;  ///< index of the element in the column
  float value;
};
template <class Count, class One>
struct OutliersOf {
  Count* count;
  One* first;  ///< outliers of earlier groups of 32 elements come first
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

/// If the largest magnitude of 32 elements is smaller than this number, these elements count as zero. For smaller
/// magnitudes, the inverse of the scale could overflow.
inline constexpr float kTiny = 1e-30f;
/// Bit pattern of the largest finite float. The bits of infinity and NaN, without the sign, are a larger integer than
/// this pattern.
inline constexpr int32_t kLargestFinite = 0x7f7fffff;

}  // namespace shoal::cpu::SHOAL_ISA
