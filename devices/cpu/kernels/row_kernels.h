// The inner loops of row-wise ops and of sums of arrays, a part of Kernels (kernels.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/dtype.h"

namespace shoal::cpu {

/// outs[each][out_first + i] = sources[0][first + i] + sources[1][first + i] + ... for i < n, added in this order in
/// f32 and rounded once. An out may be a source when both offsets are the same.
struct SumArgs {
  const std::byte* const* sources = nullptr;
  int64_t source_count = 0;  ///< at least 1
  int64_t first = 0;
  std::byte* const* outs = nullptr;
  int64_t out_count = 0;
  int64_t out_first = 0;
  int64_t n = 0;
};

using UnaryKernel = void (*)(const float* x, float* to, int64_t n);
using GluKernel = void (*)(const float* gate, const float* up, float* to, int64_t n);
/// An operand that does not step has one element, which stands for all.
using BinaryKernel = void (*)(const float* a, bool a_steps, const float* b, bool b_steps, float* to, int64_t n);
inline constexpr int kUnaryKernelCount = 20;
inline constexpr int kGluKernelCount = 5;

/// Multiple of the pairs that `turn` may read.
inline constexpr int64_t kTurnStep = 16;

/// Loops of row-wise ops over n elements of f32. Results may overwrite operands. An element is made by the same
/// operations wherever it lies.
struct RowKernels {
  const UnaryKernel* unary;    ///< by UnaryKind
  const GluKernel* glu;        ///< by GluKind: to[i] = f(gate[i]) * up[i]
  const BinaryKernel* binary;  ///< +, -, *, /
  /// to[i] = x[i] * scale + bias.
  void (*scale)(const float* x, float scale, float bias, float* to, int64_t n);
  /// NaN stays NaN.
  void (*clamp)(const float* x, float low, float high, float* to, int64_t n);
  /// In double.
  double (*sum)(const float* x, int64_t n);
  /// Sum of (x[i] - shift)^2 in double.
  double (*sum_squares)(const float* x, double shift, int64_t n);
  /// to[i] = (x[i] - shift) * factor.
  void (*normalize)(const float* x, float shift, float factor, float* to, int64_t n);
  /// to[i] = x[i] * scale + mask[i], without a mask x[i] * scale; -infinity in the mask is -infinity in the result.
  /// Returns the largest.
  float (*logits)(const float* x, const float* mask, float scale, float* to, int64_t n);
  /// The factors of rope for one position: cosines of the angles times scale for each of 2 * pairs elements, then
  /// sines, those of the first of two neighbours negative. Without `neighbours` there are pairs of each, in both
  /// places. quarters[i] is the angle of pair i per position, in quarters of a turn, readable up to a multiple of
  /// kTurnStep.
  void (*turn)(const double* quarters, double position, double scale, int64_t pairs, bool neighbours, float* factors);
  /// n elements turned by such factors, as pairs of neighbours; and n pairs of low[i] and high[i].
  void (*rotate_neighbours)(const float* x, const float* cosines, const float* sines, int64_t n, float* to);
  void (*rotate_halves)(const float* low, const float* high, const float* cosines, const float* sines, int64_t n,
                        float* to_low, float* to_high);
  /// As DTypeTraits::from_f32, bit for bit (a NaN may be another NaN); nullptr where there is nothing better.
  void (*from_f32[kDTypeCount])(const float* src, void* dst, int64_t n);
  /// f32, f16 and bf16.
  void (*sum_arrays[3])(const SumArgs& args);
};

}  // namespace shoal::cpu
