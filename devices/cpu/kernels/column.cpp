#include "devices/cpu/kernels/column.h"

#include "devices/cpu/kernels/half.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int kVectors = 32 / kLanes;

/// Magnitudes as integers, whose order is that of the numbers; NaN is the largest of all.
I32 magnitudes(F32 x) {
  return bits_as<I32>(x) & 0x7fffffff;
}

/// Largest magnitude of 32 elements; NaN when one of them is NaN.
float largest_of(const F32 (&x)[kVectors]) {
  I32 largest = magnitudes(x[0]);
  SHOAL_UNROLL
  for (int i = 1; i < kVectors; ++i) {
    const I32 other = magnitudes(x[i]);
    largest = other > largest ? other : largest;
  }
  const int32_t result = max_lanes(largest);
  float value;
  __builtin_memcpy(&value, &result, sizeof value);
  return value;
}

/// Sums of every four of 32 bytes.
I32x8 sum_quads(const int8_t* bytes) {
  return small_quad_dot(I32x8{}, I8x32{} + 1, load<I8x32>(bytes));
}

struct Sums {
  int32_t half[2];
};
Sums halves_of(I32x8 quads) {
  return {{quads[0] + quads[1] + quads[2] + quads[3], quads[4] + quads[5] + quads[6] + quads[7]}};
}

void quantize_part(const float* from, int64_t part, const NewColumn& to) {
  F32 x[kVectors];
  for (int i = 0; i < kVectors; ++i) x[i] = load<F32>(from + i * kLanes);
  const float largest = largest_of(x);
  const float scale = largest < kTiny ? 0.0f : largest / 127.0f;
  const float inverse = largest < kTiny ? 0.0f : 127.0f / largest;
  int8_t *values = to.values + 32 * part, *fine = to.fine + 32 * part;
  SHOAL_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const F32 scaled = x[i] * splat(inverse);
    const F32 shifted = scaled + splat(kRound);
    // -128 to 128; quad_dot takes no -128.
    const I32 rest = rounded((scaled - (shifted - splat(kRound))) * splat(256.0f));
    const I32 most = splat(int32_t{127}), limited = rest > most ? most : (rest < -most ? -most : rest);
    store_narrow(values + i * kLanes, bits_as<I32>(shifted) - bits_as<I32>(splat(kRound)));
    store_narrow(fine + i * kLanes, limited);
  }
  const Sums whole = halves_of(sum_quads(values)), rest = halves_of(sum_quads(fine));
  const float fine_scale = scale / 256.0f;
  int32_t start = 0, total = 0;
  for (int i = 0; i < 2; ++i) {
    const int64_t half = 2 * part + i;
    const int32_t both = 256 * whole.half[i] + rest.half[i];
    to.half_sums[half] = scale * static_cast<float>(whole.half[i]);
    to.fine_half_sums[half] = fine_scale * static_cast<float>(both);
    to.half_starts[half] = -kWeightBias * whole.half[i];
    to.half_totals[half] = both;
    start += to.half_starts[half];
    total += both;
  }
  to.scales[part] = scale;
  to.sums[part] = scale * static_cast<float>(whole.half[0] + whole.half[1]);
  to.fine_sums[part] = fine_scale * static_cast<float>(total);
  to.starts[part] = start;
  to.totals[part] = total;
}

size_t rounded_up(int64_t bytes) {
  return static_cast<size_t>(bytes + 63) / 64 * 64;
}

}  // namespace

size_t column_bytes(int64_t k) {
  // Two bytes an element; five numbers per 32 elements and four per 16.
  return rounded_up(2 * k + k / 32 * 13 * 4);
}

void quantize(const float* x, std::byte* column, int64_t k) {
  const NewColumn to = new_column_at(column, k);
  for (int64_t part = 0; part < k / 32; ++part) quantize_part(x + 32 * part, part, to);
}

size_t word_column_bytes(int64_t k) {
  return rounded_up(word_parts(k) * (32 * 2 + 4));
}

void quantize_words(const float* x, std::byte* column, int64_t k) {
  auto* values = reinterpret_cast<int16_t*>(column);
  auto* scales = reinterpret_cast<float*>(values + 32 * word_parts(k));
  for (int64_t part = 0; part < word_parts(k); ++part) {
    F32 v[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = 32 * part + i * kLanes;
      v[i] = at + kLanes <= k ? load<F32>(x + at) : at < k ? load_first<RowsF32>(x + at, k - at) : F32{};
    }
    const float largest = largest_of(v);
    scales[part] = largest < kTiny ? 0.0f : largest / kColumnWord;
    const F32 inverse = splat(largest < kTiny ? 0.0f : kColumnWord / largest);
    for (int i = 0; i < kVectors; ++i) store_narrow(values + 32 * part + i * kLanes, rounded(v[i] * inverse));
  }
}

size_t float_column_bytes(int64_t k) {
  return rounded_up(k * 4);
}

void copy_floats(const float* x, std::byte* column, int64_t k) {
  __builtin_memcpy(column, x, static_cast<size_t>(k) * sizeof(float));
}

}  // namespace shoal::cpu::SHOAL_ISA
