// The inner loops of the CPU devices, one table per instruction-set level (devices/cpu/isa.h chooses). Pure
// functions on memory that never fail; any thread may call them. This header and what it includes hold no inline
// function: it is seen by files compiled for different instruction sets, and the linker would keep any one copy.
//
// Matrix products come in two forms. `dot` reads rows of a as they are stored: for few columns, where memory is the
// limit. A *panel* is `panel_rows` rows of a side by side, decoded once and then multiplied by many columns.
// In both forms an element of the result is made by the same operations in the same order whatever the other rows
// and columns of the call are; the two forms round differently.
//
// Columns (activations) are f32 for float weights. For quantised weights they are rows of 8-bit numbers, made by
// quantize(), with an f32 scale per 32 elements for every weight type: |x - x'| <= max|x of the 32| / 254.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cpu/kernels/attention.h"
#include "graph/dtype.h"

namespace shoal::cpu {

/// c[j][c_row + i] = row i of a times column j, over k elements.
struct DotArgs {
  const std::byte* a = nullptr;
  size_t a_stride = 0;  ///< bytes from row to row
  int64_t rows = 0;
  int64_t k = 0;  ///< a multiple of the block
  const std::byte* const* b = nullptr;
  float* const* c = nullptr;
  int64_t columns = 0;
  int64_t c_row = 0;
};

/// c[j][c_row + i] (+)= row i of the panel times column j, over elements [k_begin, k_begin + k) of the columns.
struct PanelArgs {
  const std::byte* panel = nullptr;  ///< 64-byte aligned
  int64_t rows = 0;                  ///< stored to c, at most panel_rows
  int64_t k_begin = 0;               ///< a multiple of kPanelStep
  int64_t k = 0;
  int64_t k_total = 0;  ///< length of the columns
  const std::byte* const* b = nullptr;
  float* const* c = nullptr;
  int64_t columns = 0;
  int64_t c_row = 0;
  bool add = false;  ///< to c, else c is overwritten
};

/// Panels are cut along k at multiples of this: a multiple of every block.
inline constexpr int64_t kPanelStep = 256;

struct WeightKernels {
  bool quantized_columns = false;  ///< columns are rows made by quantize(), else f32
  void (*dot)(const DotArgs& args) = nullptr;
  /// Packs k elements of `rows` rows (at most panel_rows; the others of the panel become zero).
  void (*pack)(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel) = nullptr;
  void (*multiply)(const PanelArgs& args) = nullptr;
  size_t (*panel_bytes)(int64_t k) = nullptr;  ///< for k elements, a multiple of 64
  /// As DTypeTraits::to_f32, bit for bit.
  void (*to_f32)(const void* src, float* dst, int64_t n) = nullptr;
};

struct VectorKernels {
  /// Sum of a[i] * b[i].
  float (*dot)(const float* a, const float* b, int64_t n);
  /// y[i] += scale * x[i].
  void (*axpy)(float scale, const float* x, float* y, int64_t n);
  /// y[i] += weights[0] * x[0][i] + ... + weights[count - 1] * x[count - 1][i], added in this order.
  void (*weighted_sum)(const float* weights, const float* const* x, int64_t count, float* y, int64_t n);
  /// y[i] = exp(x[i] - shift); y may be x. Within 2 units in the last place; -infinity gives 0. Returns the sum.
  float (*exp)(const float* x, float shift, float* y, int64_t n);
  /// Largest element, -infinity for none.
  float (*max)(const float* x, int64_t n);
};

struct Kernels {
  int64_t panel_rows;
  /// Bytes of one quantised column of k elements (k a multiple of 32), a multiple of 64.
  size_t (*column_bytes)(int64_t k);
  void (*quantize)(const float* x, std::byte* column, int64_t k);
  VectorKernels vector;
  AttentionKernels attention;
  WeightKernels weights[kDTypeCount];  ///< by dtype; dot == nullptr for integers
};

}  // namespace shoal::cpu
