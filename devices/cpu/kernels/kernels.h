// The inner loops of the CPU devices, one table per instruction-set level (devices/cpu/isa.h chooses). Pure
// functions on memory that never fail; any thread may call them. This header and what it includes hold no inline
// function: it is seen by files compiled for different instruction sets, and the linker would keep any one copy.
//
// Matrix products come in two forms. For few columns rows of a are read once as they are stored (`dot`), where memory
// is the limit. For many columns a *panel*, `panel_rows` rows of a side by side, is decoded once and then multiplied by
// all of them. Both take rows of a as a tensor has them or *packed*: `panel_rows` rows side by side, undecoded, which
// is how weights are kept that were repacked at load (packed_layout.h). In all forms an element of the result is made
// by the same operations in the same order whatever the other rows and columns of the call are; different forms round
// differently.
//
// Columns (activations) come in three kinds, see Columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cpu/kernels/attention.h"
#include "devices/cpu/kernels/state_ops.h"
#include "graph/dtype.h"

namespace shoal::cpu {

/// c[j][c_row + i] = row i of a times column j, over k elements. Packed rows: `a` is aligned to 64 bytes.
struct DotArgs {
  const std::byte* a = nullptr;
  size_t a_stride = 0;  ///< bytes from row to row, or from packed group to packed group
  int64_t rows = 0;     ///< stored to c
  int64_t k = 0;        ///< a multiple of the block
  const std::byte* const* b = nullptr;
  float* const* c = nullptr;
  int64_t columns = 0;
  int64_t c_row = 0;
};

/// c[j][c_row + i] (+)= row i of the panels times column j, over elements [k_begin, k_begin + k) of the columns.
struct PanelArgs {
  const std::byte* panel = nullptr;  ///< 64-byte aligned
  size_t panel_stride = 0;           ///< bytes to the panel of the next panel_rows rows, where there are more rows
  int64_t rows = 0;                  ///< stored to c
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

/// The kinds of columns. x' is what a kernel sees of element x, and `most` the largest magnitude of the 32 elements
/// that x is one of.
enum class Columns : uint8_t {
  kFloats,  ///< f32 as they are
  kBytes,   ///< for quantised weights: panels see |x - x'| <= most / 254, dots |x - x'| <= most / 64770
  /// For panels of f16 and bf16 weights, which are fixed-point numbers there: |x - x'| <= most / 16382. Outliers are
  /// left out of the 32 (column.h); PanelKernels::add_outliers multiplies them.
  kWords,
};
inline constexpr int kColumnKinds = 3;

struct ColumnKernels {
  size_t (*bytes)(int64_t k) = nullptr;  ///< of one column, a multiple of 64
  void (*convert)(const float* x, std::byte* column, int64_t k) = nullptr;
};

/// All nullptr where a dtype's rows stay as they are.
struct PackedKernels {
  /// Of a group of panel_rows rows of k elements, a multiple of 64.
  size_t (*bytes)(int64_t k) = nullptr;
  /// Packs `count` rows, at most panel_rows; the others of the group become zero.
  void (*pack)(const std::byte* rows, size_t stride, int64_t count, int64_t k, std::byte* group) = nullptr;
  /// Elements [k_begin, k_begin + k) of row `row` of the group again, bit for bit; k_begin is a multiple of kPanelStep.
  void (*unpack)(const std::byte* group, int64_t row, int64_t k_begin, int64_t k, std::byte* to) = nullptr;
  void (*dot)(const DotArgs& args) = nullptr;
};

struct PanelKernels {
  Columns columns = Columns::kFloats;
  size_t (*bytes)(int64_t k) = nullptr;  ///< of a panel of k elements, a multiple of 64
  /// k elements of `rows` rows (at most panel_rows; the others of the panel are arbitrary).
  void (*from_rows)(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel) = nullptr;
  /// Elements [k_begin, k_begin + k) of a packed group; k_begin is a multiple of kPanelStep.
  void (*from_packed)(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel) = nullptr;
  void (*multiply)(const PanelArgs& args) = nullptr;
  /// Adds to c the products of weights, as they are stored, and the outliers of the columns; nullptr for columns
  /// without outliers.
  void (*add_outliers)(const DotArgs& args) = nullptr;
  void (*add_packed_outliers)(const DotArgs& args) = nullptr;
};

struct WeightKernels {
  Columns dot_columns = Columns::kFloats;
  void (*dot)(const DotArgs& args) = nullptr;
  PackedKernels packed;  ///< take dot_columns, too
  PanelKernels panels;
  /// As DTypeTraits::to_f32, bit for bit.
  void (*to_f32)(const void* src, float* dst, int64_t n) = nullptr;
};

struct VectorKernels {
  /// y[i] = exp(x[i] - shift); y may be x. Within 2 units in the last place; -infinity gives 0. Returns the sum.
  float (*exp)(const float* x, float shift, float* y, int64_t n);
  /// Largest element, -infinity for none.
  float (*max)(const float* x, int64_t n);
};

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
inline constexpr int kUnaryKernelCount = 0
#define SHOAL_UNARY(id, name) +1
#include "graph/activations.def"
    ;
inline constexpr int kGluKernelCount = 0
#define SHOAL_GLU(id, name) +1
#include "graph/activations.def"
    ;

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

struct Kernels {
  int64_t panel_rows;
  ColumnKernels columns[kColumnKinds];  ///< by kind; k is a multiple of 32 for kBytes
  VectorKernels vector;
  AttentionKernels attention;
  RowKernels rows;
  void (*causal_conv)(const ConvArgs& args);
  DeltaKernels delta;
  WeightKernels weights[kDTypeCount];  ///< by dtype; dot == nullptr for integers
};

}  // namespace shoal::cpu
