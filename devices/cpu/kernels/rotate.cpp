// Computes the rope factors of one position, and rotates rows by these factors. Also computes sines and cosines of
// arbitrary numbers.
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/rows.h"
#include "devices/cpu/kernels/wide.h"

namespace shoal::cpu::SHOAL_ISA {

void turn(const double* quarters, double position, double scale, int64_t pairs, bool neighbours, float* factors) {
  const int64_t width = 2 * pairs;
  for (int64_t begin = 0; begin < pairs; begin += kTurnStep) {
    float cosines[kTurnStep], sines[kTurnStep];
    for (int i = 0; i < kTurnStep; i += kWideLanes) {
      const Circle at = circle_at(load<F64>(quarters + begin + i) * splat_wide(position), F64{});
      store_narrowed(cosines + i, at.cosine * splat_wide(scale));
      store_narrowed(sines + i, at.sine * splat_wide(scale));
    }
    const int64_t n = pairs - begin < kTurnStep ? pairs - begin : kTurnStep;
    float *first = factors + begin, *second = first + width;
    if (neighbours) {
      for (int64_t i = 0; i < n; ++i) {
        first[begin + 2 * i] = first[begin + 2 * i + 1] = cosines[i];
        second[begin + 2 * i] = -sines[i];
        second[begin + 2 * i + 1] = sines[i];
      }
    } else {
      for (int64_t i = 0; i < n; ++i) {
        first[i] = cosines[i];
        second[i] = sines[i];
      }
    }
  }
}

namespace {

/// Exchanges neighbouring lanes.
inline F32 swap_pairs(F32 v) {
  return shuffle(v, v, [](int i) { return i ^ 1; });
}

}  // namespace

void rotate_neighbours(const float* x, const float* cosines, const float* sines, int64_t n, float* to) {
  const auto rotated = [](F32 v, F32 cosine, F32 sine) { return multiply_add(v, cosine, swap_pairs(v) * sine); };
  for_each(to, n, rotated, x, cosines, sines);
}

void rotate_halves(const float* low, const float* high, const float* cosines, const float* sines, int64_t n,
                   float* to_low, float* to_high) {
  const auto rotated = [](F32 a, F32 b, F32 cosine, F32 sine) { return multiply_add(a, cosine, b * sine); };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32 a = load<F32>(low + i), b = load<F32>(high + i);
    const F32 cosine = load<F32>(cosines + i), sine = load<F32>(sines + i);
    store(to_low + i, rotated(a, b, cosine, -sine));
    store(to_high + i, rotated(b, a, cosine, sine));
  }
  if (i == n) return;
  const int64_t rest = n - i;
  const F32 a = load_part(low + i, rest), b = load_part(high + i, rest);
  const F32 cosine = load_part(cosines + i, rest), sine = load_part(sines + i, rest);
  store_part(to_low + i, rotated(a, b, cosine, -sine), rest);
  store_part(to_high + i, rotated(b, a, cosine, sine), rest);
}

namespace {

/// Largest magnitude for which the constants for 2 / pi have enough digits for an f32 result. For larger numbers, the C
/// library computes the result. kQuartersHead has only 29 significant bits, so that its products are exact.
constexpr float kLongWay = 0x1p24f;
constexpr double kQuartersHead = 0.636619770899415, kQuartersTail = 1.4681663269012186e-09;

/// Replaces the results for NaN and for magnitudes above kLongWay by results of the C library.
template <bool kSine>
__attribute__((noinline)) void exact_waves(const float* from, float* result) {
  for (int j = 0; j < kWideLanes; ++j) {
    if (__builtin_fabsf(from[j]) <= kLongWay) continue;
    result[j] = kSine ? __builtin_sinf(from[j]) : __builtin_cosf(from[j]);
  }
}

template <bool kSine>
void some_waves(const float* from, float* result) {
  const F64 v = widened(from);
  const Circle at = circle_at(v * splat_wide(kQuartersHead), v * splat_wide(kQuartersTail));
  store_narrowed(result, kSine ? at.sine : at.cosine);
  int near = 1;
  for (int j = 0; j < kWideLanes; ++j) near &= __builtin_fabsf(from[j]) <= kLongWay;
  if (!near) exact_waves<kSine>(from, result);
}

template <bool kSine>
void waves(const float* x, float* to, int64_t n) {
  int64_t i = 0;
  float from[kWideLanes] = {}, result[kWideLanes];
  for (; i + kWideLanes <= n; i += kWideLanes) {
    store(from, load<F32Half>(x + i));  // a copy, because the result may overwrite x
    some_waves<kSine>(from, result);
    store(to + i, load<F32Half>(result));
  }
  for (int64_t j = i; j < n; ++j) from[j - i] = x[j];
  if (i < n) some_waves<kSine>(from, result);
  for (int64_t j = i; j < n; ++j) to[j] = result[j - i];
}

}  // namespace

void sines(const float* x, float* to, int64_t n) {
  waves<true>(x, to, n);
}
void cosines(const float* x, float* to, int64_t n) {
  waves<false>(x, to, n);
}

}  // namespace shoal::cpu::SHOAL_ISA
