// Sums of the tensor cores for mma_* and wgmma_*.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace shoal::cuda::emulator {

inline float f16_to_float(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
inline float bf16_to_float(uint16_t bits) {
  return __bfloat162float(__ushort_as_bfloat16(bits));
}

inline double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

/// Computes a sum as Hopper's tensor cores do. All terms are aligned to the exponent of the largest term. Each term is
/// then truncated. A truncated term has two more significant bits than an f32. The truncated terms are added exactly,
/// and the sum is truncated to f32.
template <size_t kCount>
float sum_of(float start, const std::array<float, kCount>& a, const std::array<float, kCount>& b) {
  double products[kCount], largest = std::fabs(start), plain = start;
  for (size_t i = 0; i < kCount; ++i) {
    products[i] = static_cast<double>(a[i]) * static_cast<double>(b[i]);  // exact in double
    largest = std::max(largest, std::fabs(products[i]));
    plain += products[i];
  }
  if (largest == 0 || !std::isfinite(plain)) return static_cast<float>(plain);
  constexpr int kKept = 25;  // number of bits after the leading bit
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(largest) >> 52) - 1023 - kKept;
  const double units = power_of_two(-exponent);
  auto sum = static_cast<int64_t>(start * units);
  for (const double product : products) sum += static_cast<int64_t>(product * units);
  constexpr uint64_t kBeyondF32 = (uint64_t{1} << 29) - 1;
  const double exact = static_cast<double>(sum) * power_of_two(exponent);
  return static_cast<float>(std::bit_cast<double>(std::bit_cast<uint64_t>(exact) & ~kBeyondF32));
}
}  // namespace shoal::cuda::emulator
