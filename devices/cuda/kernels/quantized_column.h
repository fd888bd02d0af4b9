// A column of f32 as records of 8-bit integers (quantized_dot.h), eight elements a thread.
//
//   const QuantizedEight codes = quantize_eight(values);          // the four threads of 32 elements together
//   store_eight<kGroups>(record, 8 * i, codes);                   // elements 8 i .. 8 i + 7 of a step
#pragma once

#include "devices/cuda/kernels/quantized_dot.h"
#include "devices/cuda/kernels/reduce.h"

namespace shoal::cuda {

struct QuantizedEight {
  uint2 bytes;
  float scale;       ///< of the 32 elements
  int sum16, sum32;  ///< of the integers of the 16 and of the 32 elements around
};

/// By four neighbouring lanes together, of which the first has a multiple of four. Elements near zero are zeros: the
/// inverse of their scale would overflow. One that is not finite makes all that it is multiplied by NaN.
__device__ inline QuantizedEight quantize_eight(const float (&x)[8]) {
  constexpr float kTiny = 1e-30f, kSteps = 127, kInteger = 12582912;  // 1.5 * 2^23: the sum's low bits are an integer
  uint32_t largest_bits = 0;                                          // as integers, NaN is the largest of all
#pragma unroll
  for (int i = 0; i < 8; ++i) largest_bits = max(largest_bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
    largest_bits = max(largest_bits, __shfl_xor_sync(kAllLanes, largest_bits, lanes));
  }
  const float largest = std::bit_cast<float>(largest_bits);
  const float scale = largest < kTiny ? 0.0f : largest * (1 / kSteps);
  const float inverse = largest < kTiny ? 0.0f : __fdividef(1.0f, scale);
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t bits[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) bits[j] = std::bit_cast<uint32_t>(fmaf(x[4 * i + j], inverse, kInteger));
    words[i] = __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
  }
  constexpr int kOnes = 0x01010101;
  int sum = __dp4a(static_cast<int>(words[0]), kOnes, __dp4a(static_cast<int>(words[1]), kOnes, 0));
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  const int other = __shfl_xor_sync(kAllLanes, sum, 2);
  return {uint2{words[0], words[1]}, scale, sum, sum + other};
}

/// `first`: of the elements in the step, a multiple of eight.
template <int kGroups>
__device__ inline void store_eight(std::byte* record, unsigned first, const QuantizedEight& eight) {
  unsigned chunk, lane, group;
  if constexpr (kGroups == 2) {
    chunk = first % kUnitElements / 16, lane = first / kUnitElements, group = first % kUnitElements / 32;
  } else {
    chunk = first % 128 / 32, lane = first / 128 * 2 + first % 32 / 16, group = chunk;
  }
  store_as<uint2>(record + 512 * chunk + 16 * lane + first % 16, eight.bytes);
  if (first % (kGroups == 4 ? 16 : 32) != 0) return;
  std::byte* const header = record + kStepValueBytes + 16 * lane + 4 * group;
  store_as<float>(header, eight.scale);
  store_as<int>(header + (kGroups == 4 ? 512 : 8), kGroups == 4 ? eight.sum16 : eight.sum32);
}

}  // namespace shoal::cuda
