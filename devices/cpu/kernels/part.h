// Loads and stores the end of a row whose length is not a multiple of kLanes.
#pragma once

#include "devices/cpu/kernels/half.h"

namespace shoal::cpu::SHOAL_ISA {

/// load_part() loads the first n elements (n < kLanes), and the remaining lanes are zero. store_part() stores the first
/// n lanes.
inline F32 load_part(const float* from, int64_t n) {
#if defined(__AVX512F__)
  return (F32)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), from);
#else
  return load_first<RowsF32>(from, n);
#endif
}
inline void store_part(float* to, F32 v, int64_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << n) - 1), (__m512)v);
#else
  store_first(to, v, n);
#endif
}

/// to[i] = f(x[i]...) for i < n. `to` may equal one of the arrays `x`.
template <class F, class... Rows>
inline void for_each(float* to, int64_t n, F f, const Rows*... x) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, f(load<F32>(x + i)...));
  if (i < n) store_part(to + i, f(load_part(x + i, n - i)...), n - i);
}

}  // namespace shoal::cpu::SHOAL_ISA
