// A quantised column: k signed bytes, then per 32 elements an f32 scale, then per 16 elements scale * (their sum) as
// f32, then per 16 elements -kWeightBias * (their sum) as int32 (see quad_dot.h). x[i] ~ values[i] * scales[i / 32].
#pragma once

#include "devices/cpu/kernels/quad_dot.h"

namespace shoal::cpu::SHOAL_ISA {

struct Column {
  const int8_t* values;
  const float* scales;
  const float* sums;
  const int32_t* starts;
};

/// The column at `from`, from element k_begin (a multiple of 32) of k_total on.
inline Column column_at(const std::byte* from, int64_t k_total, int64_t k_begin = 0) {
  const auto* scales = reinterpret_cast<const float*>(from + k_total);
  const float* sums = scales + k_total / 32;
  const auto* starts = reinterpret_cast<const int32_t*>(sums + k_total / 16);
  return {reinterpret_cast<const int8_t*>(from) + k_begin, scales + k_begin / 32, sums + k_begin / 16,
          starts + k_begin / 16};
}

size_t column_bytes(int64_t k);
void quantize(const float* x, std::byte* column, int64_t k);

}  // namespace shoal::cpu::SHOAL_ISA
