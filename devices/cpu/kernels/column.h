// A quantised column: k signed bytes and an f32 scale per 32 of them, x[i] ~ values[i] * scales[i / 32]. With them, for
// every 32 and for every 16 elements: the scaled sum, which addends of weights are multiplied by, and what integer sums
// start from, -kWeightBias times the sum of the bytes (see quad_dot.h).
#pragma once

#include "devices/cpu/kernels/quad_dot.h"

namespace shoal::cpu::SHOAL_ISA {

/// Starts of the arrays, which lie one behind the other in this order.
template <class Float, class Int, class Byte>
struct ColumnOf {
  Byte* values;
  Float* scales;     ///< per 32 elements
  Float* sums;       ///< per 32
  Float* half_sums;  ///< per 16
  Int* starts;       ///< per 32
  Int* half_starts;  ///< per 16
};
using Column = ColumnOf<const float, const int32_t, const int8_t>;
using NewColumn = ColumnOf<float, int32_t, int8_t>;

inline NewColumn new_column_at(std::byte* at, int64_t k) {
  auto* scales = reinterpret_cast<float*>(at + k);
  float *sums = scales + k / 32, *half_sums = sums + k / 32;
  auto* starts = reinterpret_cast<int32_t*>(half_sums + k / 16);
  return {reinterpret_cast<int8_t*>(at), scales, sums, half_sums, starts, starts + k / 32};
}

/// The column at `at`, from element k_begin (a multiple of 32) of k_total on.
inline Column column_at(const std::byte* at, int64_t k_total, int64_t k_begin = 0) {
  const NewColumn c = new_column_at(const_cast<std::byte*>(at), k_total);
  return {c.values + k_begin,         c.scales + k_begin / 32, c.sums + k_begin / 32,
          c.half_sums + k_begin / 16, c.starts + k_begin / 32, c.half_starts + k_begin / 16};
}

size_t column_bytes(int64_t k);
void quantize(const float* x, std::byte* column, int64_t k);

}  // namespace shoal::cpu::SHOAL_ISA
