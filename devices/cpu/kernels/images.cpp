// Windows and interpolation along rows of images. Only the strides 1 and 2 have loops of their own.
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/rows.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

struct Larger {
  static constexpr float kStart = -__builtin_inff();
  /// NaN if one of the values is NaN.
  static float apply(float a, float b) { return ((b > a) | (b != b)) ? b : a; }
};
struct Total {
  static constexpr float kStart = 0;
  static float apply(float a, float b) { return a + b; }
};

/// kStride is the stride, or 0 for any stride.
template <class F, int64_t kStride>
void pool_strided(const PoolRow& row) {
  const int64_t stride = kStride > 0 ? kStride : row.stride;
  float* __restrict to = row.to;
  for (int64_t i = 0; i < row.n; ++i) to[i] = F::kStart;
  for (int64_t k = 0; k < row.kernel; ++k) {
    const int64_t offset = k - row.before;
    if (offset >= row.length) break;
    const int64_t begin = offset < 0 ? (stride - 1 - offset) / stride : 0;
    const int64_t inside = (row.length - 1 - offset) / stride + 1, end = inside < row.n ? inside : row.n;
    const float* __restrict x = row.x + offset;
    for (int64_t i = begin; i < end; ++i) to[i] = F::apply(to[i], x[i * stride]);
  }
}

template <class F>
void pool(const PoolRow& row) {
  if (row.stride == 1) return pool_strided<F, 1>(row);
  row.stride == 2 ? pool_strided<F, 2>(row) : pool_strided<F, 0>(row);
}

template <class F>
void combine(const float* a, const float* b, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = F::apply(a[i], b[i]);
}

}  // namespace

void pool_largest(const PoolRow& row) {
  pool<Larger>(row);
}
void pool_sum(const PoolRow& row) {
  pool<Total>(row);
}
void larger_of(const float* a, const float* b, float* to, int64_t n) {
  combine<Larger>(a, b, to, n);
}
void total_of(const float* a, const float* b, float* to, int64_t n) {
  combine<Total>(a, b, to, n);
}

void gather(const float* __restrict x, const int32_t* __restrict at, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = x[at[i]];
}

void interpolate(const float* __restrict x, const Taps& taps, float* __restrict to, int64_t n) {
  const int32_t *const low = taps.low, *const high = taps.high;
  const float* const weight = taps.weight;
  for (int64_t i = 0; i < n; ++i) to[i] = x[low[i]] * (1 - weight[i]) + x[high[i]] * weight[i];
}

void mix(const float* a, const float* b, float weight, float* to, int64_t n) {
  for_each(
      to, n, [=](F32 x, F32 y) { return multiply_add(y, splat(weight), x * splat(1 - weight)); }, a, b);
}

}  // namespace shoal::cpu::SHOAL_ISA
