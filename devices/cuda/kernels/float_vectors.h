// Vectors of 16 bytes of f32, f16 or bf16 as f32.
#pragma once

#include "devices/cuda/kernels/dequantize.h"

namespace shoal::cuda {

/// The last parameter tells the type.
__device__ inline void values_of(const uint4& bits, float (&to)[4], const float*) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
  for (int i = 0; i < 4; ++i) to[i] = std::bit_cast<float>(words[i]);
}
__device__ inline void values_of(const uint4& bits, float (&to)[8], const __half*) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = half_bits_to_float(static_cast<uint16_t>(words[i]));
    to[2 * i + 1] = half_bits_to_float(static_cast<uint16_t>(words[i] >> 16));
  }
}
__device__ inline void values_of(const uint4& bits, float (&to)[8], const __nv_bfloat16*) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = std::bit_cast<float>(words[i] << 16);
    to[2 * i + 1] = std::bit_cast<float>(words[i] & 0xffff0000u);
  }
}

}  // namespace shoal::cuda
