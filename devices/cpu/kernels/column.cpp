#include "devices/cpu/kernels/column.h"

#include "devices/cpu/kernels/narrow.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int kVectors = 32 / kLanes;

/// Returns the largest magnitude of 32 elements. If an element is infinite or NaN, returns NaN and sets all 32 elements
/// to zero. In this case, the scale and the products are NaN, but the integers and sums of the column stay defined.
float largest_of(F32 (&x)[kVectors]) {
  const int32_t result = max_lanes(largest_magnitude_bits(x));
  if (result > kLargestFinite) {
    for (F32& v : x) v = F32{};
    return __builtin_nanf("");
  }
  float value;
  __builtin_memcpy(&value, &result, sizeof value);
  return value;
}

/// Lane 0 of the result is the sum of the first 16 of 32 bytes. Lane 1 is the sum of the last 16 bytes. Lanes 2 and 3
/// repeat lanes 0 and 1.
Vec<int32_t, 4> halves_of(I8x32 bytes) {
  const I32x8 quads = small_quad_dot(I8x32{} + 1, bytes);
  const auto pairs =
      __builtin_shufflevector(quads, quads, 0, 4, 1, 5) + __builtin_shufflevector(quads, quads, 2, 6, 3, 7);
  return pairs + __builtin_shufflevector(pairs, pairs, 2, 3, 0, 1);
}

void quantize_part(const float* from, int64_t part, const NewColumn& to) {
  F32 x[kVectors];
  for (int i = 0; i < kVectors; ++i) x[i] = load<F32>(from + i * kLanes);
  const float largest = largest_of(x);
  const float scale = largest < kTiny ? 0.0f : largest * (1.0f / 127.0f);
  const float inverse = largest >= kTiny ? 127.0f / largest : 0.0f;  // 0 if `largest` is NaN; the scale is then NaN
  I32 whole[kVectors];
  SHOAL_UNROLL
  for (int i = 0; i < kVectors; ++i) whole[i] = rounded(x[i] * splat(inverse));
  const I8x32 values = bytes_of(whole);
  store(to.values + 32 * part, values);

  using Two = Vec<int32_t, 4>;
  const Two sums = halves_of(values), starts = sums * -kStartUnit;
  const Vec<float, 4> half_sums = __builtin_convertvector(sums, Vec<float, 4>) * scale;
  // Only lanes 0 and 1 are copied.
  __builtin_memcpy(to.half_sums + 2 * part, &half_sums, 8);
  __builtin_memcpy(to.half_starts + 2 * part, &starts, 8);
  const int32_t sum = sums[0] + sums[1];
  to.scales[part] = scale;
  to.sums[part] = scale * static_cast<float>(sum);
  to.starts[part] = -kStartUnit * sum;
}

/// Whether at most kMostOutliers of 32 elements reach the magnitude `largest` / kOutlierRatio.
bool has_few_large(const F32 (&x)[kVectors], float largest) {
  const F32 limit = splat(largest / kOutlierRatio);
  I32 counts = {};
  SHOAL_UNROLL
  for (int i = 0; i < kVectors; ++i) counts -= bits_as<F32>(magnitude_bits(x[i])) >= limit;
  return sum_lanes(to_float(counts)) <= kMostOutliers;
}

/// Moves the outliers of 32 elements to the list `to`, which has space for `room` more outliers. The first of the 32
/// elements is element `at` of the column. Returns the number of moved outliers.
int take_outliers(F32 (&x)[kVectors], int64_t at, Outlier* to, int64_t room) {
  float values[32];
  __builtin_memcpy(values, x, sizeof values);
  const int64_t most = room < kMostOutliers ? room : kMostOutliers;
  int taken = 0;
  for (;;) {
    float largest = 0;
    for (const float v : values) largest = __builtin_fabsf(v) > largest ? __builtin_fabsf(v) : largest;
    int large = 0, zeros = 0;
    for (const float v : values) {
      large += __builtin_fabsf(v) * kOutlierRatio >= largest;
      zeros += __builtin_fabsf(v) < kTiny;
    }
    if (taken + large > most || large + zeros >= 32) break;  // no benefit if every element that is not large is zero
    for (int i = 0; i < 32; ++i) {
      if (__builtin_fabsf(values[i]) * kOutlierRatio < largest) continue;
      to[taken++] = {static_cast<int32_t>(at) + i, values[i]};
      values[i] = 0;
    }
  }
  __builtin_memcpy(x, values, sizeof values);
  return taken;
}

size_t rounded_up(int64_t bytes) {
  return static_cast<size_t>(bytes + 63) / 64 * 64;
}

}  // namespace

size_t column_bytes(int64_t k) {
  // A column contains one byte per element, three 4-byte numbers per 32 elements and two 4-byte numbers per 16
  // elements.
  return rounded_up(k + k / 32 * 7 * 4);
}

void quantize(const float* x, std::byte* column, int64_t k) {
  const NewColumn to = new_column_at(column, k);
  for (int64_t part = 0; part < k / 32; ++part) quantize_part(x + 32 * part, part, to);
}

size_t word_column_bytes(int64_t k) {
  return rounded_up(word_parts(k) * (32 * 2 + 4) + 4 + most_outliers(k) * static_cast<int64_t>(sizeof(Outlier)));
}

void quantize_words(const float* x, std::byte* column, int64_t k) {
  auto* values = reinterpret_cast<int16_t*>(column);
  auto* scales = reinterpret_cast<float*>(values + 32 * word_parts(k));
  const NewOutliers outliers = new_outliers_of(column, k);
  int32_t count = 0;
  for (int64_t part = 0; part < word_parts(k); ++part) {
    F32 v[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = 32 * part + i * kLanes;
      v[i] = at + kLanes <= k ? load<F32>(x + at) : at < k ? load_first<RowsF32>(x + at, k - at) : F32{};
    }
    float largest = largest_of(v);
    if (count < most_outliers(k) && has_few_large(v, largest)) {
      const int taken = take_outliers(v, 32 * part, outliers.first + count, most_outliers(k) - count);
      if (taken > 0) largest = largest_of(v);  // if no outlier was moved, `largest` may be NaN and must remain NaN
      count += taken;
    }
    scales[part] = largest < kTiny ? 0.0f : largest / kWord;
    const F32 inverse = splat(largest >= kTiny ? kWord / largest : 0.0f);
    for (int i = 0; i < kVectors; ++i) store(values + 32 * part + i * kLanes, low_halves(rounded(v[i] * inverse)));
  }
  *outliers.count = count;
}

size_t float_column_bytes(int64_t k) {
  return rounded_up(k * 4);
}

void copy_floats(const float* x, std::byte* column, int64_t k) {
  __builtin_memcpy(column, x, static_cast<size_t>(k) * sizeof(float));
}

}  // namespace shoal::cpu::SHOAL_ISA
