#include "devices/cpu/ops/activations.h"

#include <array>
#include <cmath>
#include <numbers>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

template <float (*f)(float)>
void each(const float* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = f(from[i]);
}

void exp_of(const float* from, float* to, int64_t n) {
  kernels().vector.exp(from, 0.0f, to, n);
}

float one(float) {
  return 1.0f;
}
float same(float x) {
  return x;
}
float quick(float x) {
  return 1.702f * x;
}
/// 0.5 x (1 + tanh(u)) == x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
float twice_u(float x) {
  constexpr float kTwice = 1.5957691216057308f;
  return kTwice * (x + 0.044715f * x * x * x);
}

/// factor(x) * sigmoid(argument(x)), with the vector exponential in the middle.
template <float (*factor)(float), float (*argument)(float)>
void gated(const float* from, float* to, int64_t n) {
  float exps[kChunk];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) exps[i] = -argument(from[i]);
  exp_of(exps, exps, n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = factor(from[i]) / (1.0f + exps[i]);
}

float hard_sigmoid(float x) {
  const float y = (x + 3.0f) / 6.0f;
  const float low = y < 0.0f ? 0.0f : y;
  return low > 1.0f ? 1.0f : low;
}

float abs_of(float x) {
  return std::fabs(x);
}
float neg(float x) {
  return -x;
}
float sgn(float x) {
  return static_cast<float>((x > 0.0f) - (x < 0.0f));
}
float step(float x) {
  return x > 0.0f ? 1.0f : 0.0f;
}
float tanh_of(float x) {
  return std::tanh(x);
}
float elu(float x) {
  return x > 0.0f ? x : std::expm1(x);
}
float relu(float x) {
  return x > 0.0f ? x : 0.0f;
}
/// 0.5 x (1 + erf(x / sqrt 2)), by erfc because 1 + erf would cancel for negative x.
float gelu_erf(float x) {
  return 0.5f * x * std::erfc(-x * std::numbers::sqrt2_v<float> / 2);
}
float hard_swish(float x) {
  return x * hard_sigmoid(x);
}
float log_of(float x) {
  return std::log(x);
}
float sqr(float x) {
  return x * x;
}
float sqrt_of(float x) {
  return std::sqrt(x);
}
float sin_of(float x) {
  return std::sin(x);
}
float cos_of(float x) {
  return std::cos(x);
}

constexpr std::array kTable = std::to_array<Activation>({
    each<abs_of>,       each<neg>,         each<sgn>,        each<step>,           each<tanh_of>,
    each<elu>,          each<relu>,        gated<one, same>, gated<same, twice_u>, each<gelu_erf>,
    gated<same, quick>, gated<same, same>, each<hard_swish>, each<hard_sigmoid>,   exp_of,
    each<log_of>,       each<sqr>,         each<sqrt_of>,    each<sin_of>,         each<cos_of>,
});
static_assert(kTable.size() == static_cast<size_t>(UnaryKind::kCount),
              "one function per kind, in the order of the enumeration");

}  // namespace

Activation activation_for(UnaryKind kind) {
  return kTable[static_cast<size_t>(kind)];
}

}  // namespace shoal::cpu
