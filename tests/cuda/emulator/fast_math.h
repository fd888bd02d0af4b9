// Functions of CUDA's math library that C has not, and the fast ones, which are as accurate as their namesakes here.
// Conversions between halfs and floats are the toolkit's own.
#pragma once

#include <cuda_fp16.h>
#include <math.h>

// The C library declares a function with this name for itself.
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

// min and max of floats ignore a NaN, as those of C do.
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}

// Rounded once: products of halfs are exact in double, and so is the sum unless the terms are very far apart.
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half(fma(double{__half2float(a)}, double{__half2float(b)}, double{__half2float(c)}));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(__low2half(a), __low2half(b), __low2half(c)),
                        __hfma(__high2half(a), __high2half(b), __high2half(c)));
}
