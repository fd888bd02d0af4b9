#include "devices/cpu/ops/activations.h"

#include <array>
#include <bit>
#include <cmath>
#include <numbers>

namespace shoal::cpu {
namespace {

/// e^x within 2 units in the last place, in operations that compilers turn into vector code: x = n ln 2 + r with
/// |r| <= ln 2 / 2, e^r by its Taylor polynomial, 2^n in two steps so that results below the normal range are right
/// too.
inline float exp_of(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  x = x < -110.0f ? -110.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * std::numbers::log2e_v<float> + kRound;
  const float n = shifted - kRound;
  const int32_t whole = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const int32_t half = whole >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((whole - half + 127) << 23);
  return p * first * second;
}

inline float sigmoid(float x) {
  return 1.0f / (1.0f + exp_of(-x));
}

/// 0.5 x (1 + tanh(u)) == x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline float gelu(float x) {
  constexpr float kTwice = 1.5957691216057308f;
  return x * sigmoid(kTwice * (x + 0.044715f * x * x * x));
}

inline float hard_sigmoid(float x) {
  const float y = (x + 3.0f) / 6.0f;
  const float low = y < 0.0f ? 0.0f : y;
  return low > 1.0f ? 1.0f : low;
}

template <float (*f)(float)>
void each(const float* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = f(from[i]);
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
float gelu_quick(float x) {
  return x * sigmoid(1.702f * x);
}
float silu(float x) {
  return x * sigmoid(x);
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

constexpr std::array<Activation, static_cast<size_t>(UnaryKind::kCount)> kTable = {
    each<abs_of>,  each<neg>,    each<sgn>,      each<step>,       each<tanh_of>, each<elu>,        each<relu>,
    each<sigmoid>, each<gelu>,   each<gelu_erf>, each<gelu_quick>, each<silu>,    each<hard_swish>, each<hard_sigmoid>,
    each<exp_of>,  each<log_of>, each<sqr>,      each<sqrt_of>,    each<sin_of>,  each<cos_of>,
};
static_assert(kTable.back() != nullptr, "one function per kind, in the order of the enumeration");

}  // namespace

Activation activation_for(UnaryKind kind) {
  return kTable[static_cast<size_t>(kind)];
}

}  // namespace shoal::cpu
