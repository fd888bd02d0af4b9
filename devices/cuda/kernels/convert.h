// Elements of the plain (not quantised) dtypes in kernels. The functions convert elements to float and to other dtypes,
// and access 16 bytes at a time. Rounding is as in graph/dtype.h. Products and sums that must round as on the CPU use
// Rounded.
#pragma once

#include <bit>
#include <limits>
#include <type_traits>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/platform.h"
#include "graph/dtype.h"

namespace shoal::cuda {

/// A float whose products and sums the compiler never fuses into an fma.
struct Rounded {
  float value;
  __device__ Rounded(float x) : value(x) {}  // NOLINT: implicit, because formulas mix Rounded and float
  __device__ operator float() const { return value; }
};
__device__ inline Rounded operator*(Rounded a, Rounded b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a.value, b.value);
#else
  return a.value * b.value;
#endif
}
__device__ inline Rounded operator+(Rounded a, Rounded b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a.value, b.value);
#else
  return a.value + b.value;
#endif
}
__device__ inline Rounded operator-(Rounded a, Rounded b) {
  return a + Rounded(-b.value);
}
__device__ inline Rounded operator/(Rounded a, Rounded b) {
  return a.value / b.value;
}

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__half x) {
  return __half2float(x);
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_float(int32_t x) {
  return static_cast<float>(x);
}
__device__ inline float to_float(int64_t x) {
  return static_cast<float>(x);
}

/// Converts a float. Rounds to nearest, ties to even. For integer types, values out of range saturate, and NaN becomes
/// 0.
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    constexpr float kBound = sizeof(T) == 4 ? 0x1p31f : 0x1p63f;  // the first value above the range
    const float nearest = rintf(x);
    if (!(nearest == nearest)) return 0;
    if (nearest >= kBound) return std::numeric_limits<T>::max();
    return nearest < -kBound ? std::numeric_limits<T>::min() : static_cast<T>(nearest);
  }
}

/// Loads an element whose dtype is known only at the launch. The dtype must not be quantised.
__device__ inline float float_at(DType dtype, const std::byte* address) {
  switch (dtype) {
    case DType::kF32:
      return load_as<float>(address);
    case DType::kF16:
      return to_float(load_as<__half>(address));
    case DType::kBF16:
      return to_float(load_as<__nv_bfloat16>(address));
    case DType::kI32:
      return to_float(load_as<int32_t>(address));
    default:
      return to_float(load_as<int64_t>(address));
  }
}
/// Stores an element whose dtype is known only at the launch. The dtype must not be quantised.
__device__ inline void store_float(DType dtype, float x, std::byte* to) {
  switch (dtype) {
    case DType::kF32:
      return store_as<float>(to, x);
    case DType::kF16:
      return store_as<__half>(to, from_float<__half>(x));
    case DType::kBF16:
      return store_as<__nv_bfloat16>(to, from_float<__nv_bfloat16>(x));
    case DType::kI32:
      return store_as<int32_t>(to, from_float<int32_t>(x));
    default:
      return store_as<int64_t>(to, from_float<int64_t>(x));
  }
}
/// Loads an element of an i32 or i64 tensor.
__device__ inline int64_t integer_at(DType dtype, const std::byte* address) {
  return dtype == DType::kI64 ? load_as<int64_t>(address) : load_as<int32_t>(address);
}

/// A pack of elements (16 or 8 bytes) that one instruction loads or stores. Addresses must be aligned to the size of
/// the pack.
template <class T, int kBytes = 16>
struct Pack {
  using Bits = std::conditional_t<kBytes == 16, uint4, uint2>;
  static constexpr int kCount = kBytes / sizeof(T);
  T values[kCount];
};
template <class T, int kBytes = 16>
__device__ inline Pack<T, kBytes> load_pack(const std::byte* from) {
  return std::bit_cast<Pack<T, kBytes>>(load_as<typename Pack<T, kBytes>::Bits>(from));
}
template <class T>
__device__ inline void store_pack(const Pack<T>& pack, std::byte* to) {
  store_as<uint4>(to, std::bit_cast<uint4>(pack));
}

/// Converts 16 bytes of elements to floats.
template <class T>
__device__ inline void to_floats(const uint4& bits, float (&to)[Pack<T>::kCount]) {
  const auto pack = std::bit_cast<Pack<T>>(bits);
#pragma unroll
  for (int i = 0; i < Pack<T>::kCount; ++i) to[i] = to_float(pack.values[i]);
}
/// load_floats() and store_floats() load and store `kCount` elements as floats. Together, the elements occupy 8 bytes
/// (loads only) or a multiple of 16 bytes.
template <class T, int kCount>
__device__ inline void load_floats(const std::byte* from, float (&to)[kCount]) {
  constexpr int kBytes = kCount * sizeof(T) == 8 ? 8 : 16, kStep = kBytes / sizeof(T);
  static_assert(kCount % kStep == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += kStep) {
    const auto pack = load_pack<T, kBytes>(from + i * sizeof(T));
#pragma unroll
    for (int j = 0; j < kStep; ++j) to[i + j] = to_float(pack.values[j]);
  }
}
template <class T, int kCount>
__device__ inline void store_floats(const float (&from)[kCount], std::byte* to) {
  constexpr int kStep = Pack<T>::kCount;
  static_assert(kCount % kStep == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += kStep) {
    Pack<T> pack;
#pragma unroll
    for (int j = 0; j < kStep; ++j) pack.values[j] = from_float<T>(from[i + j]);
    store_pack(pack, to + i * sizeof(T));
  }
}

/// Stores eight elements as f32, f16 or bf16.
__device__ inline void store_eight(DType dtype, const float (&x)[8], std::byte* to) {
  if (dtype == DType::kF32) return store_floats<float>(x, to);
  dtype == DType::kF16 ? store_floats<__half>(x, to) : store_floats<__nv_bfloat16>(x, to);
}

}  // namespace shoal::cuda
