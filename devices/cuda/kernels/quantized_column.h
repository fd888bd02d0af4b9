// Converts a column of f32 to records of 8-bit integers (quantized_dot.h). Each thread passes 1, 4 or 8 neighbouring
// elements. The number of elements does not affect the resulting integers.
//
//   const QuantizedPart<8> part = quantize_part(values);     // the four threads of 32 elements together
//   store_part<kGroups>(step, 8 * i, part);                  // elements 8 i .. 8 i + 7 of a step
#pragma once

#include <bit>
#include <type_traits>

#include "devices/cuda/column_record.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/reduce.h"

namespace shoal::cuda {

template <int kEach>
struct QuantizedPart {
  using Bytes = std::conditional_t<kEach == 1, uint8_t, std::conditional_t<kEach == 4, uint32_t, uint2>>;
  Bytes bytes;
  float scale;       ///< scale of the 32 elements that include this part
  int sum16, sum32;  ///< sums of the integers over the 16 elements, and over the 32 elements, that include this part
};

/// Quantises kEach elements. 32 / kEach neighbouring lanes call this function together for 32 elements. The index of
/// the first of these lanes is a multiple of 32 / kEach. If all 32 elements are close to zero, they become zeros,
/// because the inverse of their scale would overflow. If an element is infinite or NaN, every product with these 32
/// elements is NaN.
template <int kEach>
__device__ inline QuantizedPart<kEach> quantize_part(const float (&x)[kEach]) {
  constexpr float kTiny = 1e-30f, kSteps = 127, kInteger = 12582912;  // 1.5 * 2^23: after an addition of kInteger, the
                                                                      // low bits of the float are the integer
  uint32_t largest_bits = 0;                                          // compared as integers, so NaN is the largest
#pragma unroll
  for (int i = 0; i < kEach; ++i) largest_bits = max(largest_bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
#pragma unroll
  for (int lanes = 1; lanes < 32 / kEach; lanes *= 2) {
    largest_bits = max(largest_bits, __shfl_xor_sync(kAllLanes, largest_bits, lanes));
  }
  const float largest = std::bit_cast<float>(largest_bits);
  QuantizedPart<kEach> part;
  part.scale = largest < kTiny ? 0.0f : largest * (1 / kSteps);
  const float inverse = largest < kTiny ? 0.0f : __fdividef(1.0f, part.scale);
  uint32_t bits[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) bits[i] = std::bit_cast<uint32_t>(fmaf(x[i], inverse, kInteger));
  const auto word = [&](int first) {
    return __byte_perm(__byte_perm(bits[first], bits[first + 1], 0x0040),
                       __byte_perm(bits[first + 2], bits[first + 3], 0x0040), 0x5410);
  };
  constexpr int kOnes = 0x01010101;
  if constexpr (kEach == 1) {
    part.bytes = static_cast<uint8_t>(bits[0]);
    part.sum16 = static_cast<int8_t>(bits[0]);
  } else if constexpr (kEach == 4) {
    part.bytes = word(0);
    part.sum16 = __dp4a(static_cast<int>(part.bytes), kOnes, 0);
  } else {
    part.bytes = uint2{word(0), word(4)};
    part.sum16 = __dp4a(static_cast<int>(part.bytes.y), kOnes, __dp4a(static_cast<int>(part.bytes.x), kOnes, 0));
  }
#pragma unroll
  for (int lanes = 1; lanes < 16 / kEach; lanes *= 2) part.sum16 += __shfl_xor_sync(kAllLanes, part.sum16, lanes);
  part.sum32 = part.sum16 + __shfl_xor_sync(kAllLanes, part.sum16, 16 / kEach);
  return part;
}

/// Stores elements `first` .. first + kEach - 1 of a step. `first` is a multiple of kEach.
template <int kGroups, int kEach>
__device__ inline void store_part(std::byte* step, unsigned first, const QuantizedPart<kEach>& part) {
  unsigned chunk, lane, group;
  if constexpr (kGroups == 2) {
    chunk = first % kUnitElements / 16, lane = first / kUnitElements, group = first % kUnitElements / 32;
  } else {
    chunk = first % 128 / 32, lane = first / 128 * 2 + first % 32 / 16, group = chunk;
  }
  store_as<typename QuantizedPart<kEach>::Bytes>(step + 512 * chunk + 16 * lane + first % 16, part.bytes);
  if (first % (kGroups == 4 ? 16 : 32) != 0) return;
  std::byte* const header = step + kStepValueBytes + 16 * lane + 4 * group;
  store_as<float>(header, part.scale);
  store_as<int>(header + (kGroups == 4 ? 512 : 8), kGroups == 4 ? part.sum16 : part.sum32);
}

/// Stores elements `first` .. first + kEach - 1 of a column in all forms of the record. Lanes call record_part() in the
/// same groups as quantize_part(). Lanes with `first` >= `end` only take part in the reductions.
template <int kEach>
__device__ inline void record_part(const ColumnRecord& record, unsigned first, unsigned end, const float (&x)[kEach]) {
  const QuantizedPart<kEach> part = quantize_part(x);
  if (first >= end) return;
  const unsigned step = first / kStepElements, at = first % kStepElements;
  if (record.two) store_part<2>(record.two + step * column_step_bytes(2), at, part);
  if (record.four) store_part<4>(record.four + step * column_step_bytes(4), at, part);
}

}  // namespace shoal::cuda
