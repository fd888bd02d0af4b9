// Functions of CUDA's math library that C has not, and the fast ones, which are as accurate as their namesakes here.
// Conversions between halfs and floats are the toolkit's own.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

// The C library declares functions with these names for itself.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __sincosf sincosf

inline float rsqrtf(float x) {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline float __frsqrt_rn(float x) {
  return rsqrtf(x);
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fsqrt_rn(float x) {
  return sqrtf(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline float __saturatef(float x) {
  return x > 0 ? std::min(x, 1.0f) : 0.0f;  // 0 for NaN
}
inline float fdividef(float a, float b) {
  return a / b;
}
inline float normcdff(float x) {
  return 0.5f * erfcf(-x * 0.70710678118654752440f);
}
inline float sinpif(float x) {
  return static_cast<float>(sin(3.14159265358979323846 * x));
}
inline float cospif(float x) {
  return static_cast<float>(cos(3.14159265358979323846 * x));
}

// min and max of floats ignore a NaN, as those of C do.
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}

inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline uint32_t __float_as_uint(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(uint32_t x) {
  return std::bit_cast<float>(x);
}
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}

namespace shoal::cuda::emulator {

/// As CUDA converts: out of range becomes the nearest, NaN becomes 0.
template <class Integer>
Integer saturate(double x) {
  if (isnan(x)) return 0;
  if (x <= static_cast<double>(std::numeric_limits<Integer>::min())) return std::numeric_limits<Integer>::min();
  if (x >= static_cast<double>(std::numeric_limits<Integer>::max())) return std::numeric_limits<Integer>::max();
  return static_cast<Integer>(x);
}

}  // namespace shoal::cuda::emulator

inline int __float2int_rn(float x) {
  return shoal::cuda::emulator::saturate<int>(rint(static_cast<double>(x)));
}
inline int __float2int_rz(float x) {
  return shoal::cuda::emulator::saturate<int>(trunc(static_cast<double>(x)));
}
inline int __float2int_rd(float x) {
  return shoal::cuda::emulator::saturate<int>(floor(static_cast<double>(x)));
}
inline int __float2int_ru(float x) {
  return shoal::cuda::emulator::saturate<int>(ceil(static_cast<double>(x)));
}
inline uint32_t __float2uint_rn(float x) {
  return shoal::cuda::emulator::saturate<uint32_t>(rint(static_cast<double>(x)));
}
inline uint32_t __float2uint_rz(float x) {
  return shoal::cuda::emulator::saturate<uint32_t>(trunc(static_cast<double>(x)));
}
inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}
inline float __uint2float_rn(uint32_t x) {
  return static_cast<float>(x);
}
inline float __ll2float_rn(long long x) {
  return static_cast<float>(x);
}
inline float __double2float_rn(double x) {
  return static_cast<float>(x);
}

// Rounded once: products of halfs are exact in double, and so is the sum unless the terms are very far apart.
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half(fma(double{__half2float(a)}, double{__half2float(b)}, double{__half2float(c)}));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)),
                        __hfma(__high2half(a), __high2half(b), __high2half(c)));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __double2bfloat16(fma(double{__bfloat162float(a)}, double{__bfloat162float(b)}, double{__bfloat162float(c)}));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __halves2bfloat162(__hfma(__low2bfloat16(a), __low2bfloat16(b), __low2bfloat16(c)),
                            __hfma(__high2bfloat16(a), __high2bfloat16(b), __high2bfloat16(c)));
}

inline long long clock64() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
[[noreturn]] inline void __trap() {
  std::fputs("CUDA emulator: __trap()\n", stderr);
  std::abort();
}
