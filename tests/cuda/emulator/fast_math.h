// Functions of CUDA's math library that C lacks. CUDA's fast functions have full accuracy here. The headers of the CUDA
// toolkit convert between halfs and floats.
#pragma once

#include <cuda_fp16.h>
#include <math.h>

// __expf is a macro, because the C library also declares a function with this name.
#define __expf expf

inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}

// min and max of floats ignore a NaN, like C's fminf and fmaxf.
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}

// The fused multiply-add rounds only its result. The product of two halfs is exact in double. The sum is also exact if
// the magnitudes of its two terms differ at most by a factor of 2^30.
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half(fma(double{__half2float(a)}, double{__half2float(b)}, double{__half2float(c)}));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)),
                        __hfma(__high2half(a), __high2half(b), __high2half(c)));
}
