// Element-wise functions of the ops unary and glu.
#pragma once

#include "devices/cuda/kernels/platform.h"
#include "graph/ops/params.h"

namespace shoal::cuda {

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
/// GELU is 0.5 x (1 + tanh(u)) == x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). kGeluTwice is 2 sqrt(2 / pi).
inline constexpr float kGeluTwice = 1.5957691216057308f;
/// 0.5 x (1 + erf(x / sqrt 2)), computed with erfc because 1 + erf loses digits for negative x.
__device__ inline float gelu_erf(float x) {
  return 0.5f * x * erfcf(x * -0.70710678118654752f);
}
__device__ inline float relu(float x) {
  return x > 0.0f ? x : 0.0f;
}
__device__ inline float hard_sigmoid(float x) {
  const float y = (x + 3.0f) / 6.0f;
  const float low = y < 0.0f ? 0.0f : y;
  return low > 1.0f ? 1.0f : low;
}

/// The activation of glu. `kind` is the same for all threads. Three of the kinds share one call of expf().
__device__ inline float activate_gate(GluKind kind, float x) {
  if (kind == GluKind::kReglu) return relu(x);
  if (kind == GluKind::kGegluErf) return gelu_erf(x);
  const float inner = kind == GluKind::kGeglu        ? kGeluTwice * (x + 0.044715f * x * x * x)
                      : kind == GluKind::kGegluQuick ? 1.702f * x
                                                     : x;
  return x / (1.0f + expf(-inner));
}

/// The activation of unary. `kind` is the same for all threads, so the branch does not diverge.
__device__ inline float activate(UnaryKind kind, float x) {
  switch (kind) {
    case UnaryKind::kAbs:
      return fabsf(x);
    case UnaryKind::kNeg:
      return -x;
    case UnaryKind::kSgn:
      return static_cast<float>((x > 0.0f) - (x < 0.0f));
    case UnaryKind::kStep:
      return x > 0.0f ? 1.0f : 0.0f;
    case UnaryKind::kTanh:
      return tanhf(x);
    case UnaryKind::kElu:
      return x > 0.0f ? x : expm1f(x);
    case UnaryKind::kRelu:
      return relu(x);
    case UnaryKind::kSigmoid:
      return sigmoid(x);
    case UnaryKind::kGelu:
      return activate_gate(GluKind::kGeglu, x);
    case UnaryKind::kGeluErf:
      return gelu_erf(x);
    case UnaryKind::kGeluQuick:
      return activate_gate(GluKind::kGegluQuick, x);
    case UnaryKind::kSilu:
      return activate_gate(GluKind::kSwiglu, x);
    case UnaryKind::kHardSwish:
      return x * hard_sigmoid(x);
    case UnaryKind::kHardSigmoid:
      return hard_sigmoid(x);
    case UnaryKind::kExp:
      return expf(x);
    case UnaryKind::kLog:
      return logf(x);
    case UnaryKind::kSqr:
      return x * x;
    case UnaryKind::kSqrt:
      return sqrtf(x);
    case UnaryKind::kSin:
      return sinf(x);
    case UnaryKind::kCos:
      return cosf(x);
    case UnaryKind::kSoftplus:
      return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    case UnaryKind::kCount:
      break;
  }
  return x;
}

}  // namespace shoal::cuda
