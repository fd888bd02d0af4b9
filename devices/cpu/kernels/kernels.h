// The inner loops of the CPU devices, with one table per instruction-set level (devices/cpu/isa.h chooses the level).
// They are pure functions on memory that never fail; any thread may call them. This header and its includes contain no
// inline functions: files compiled for different instruction sets include it, and the linker would keep an arbitrary
// copy.
//
// Matrix products of the weights `a` and the columns `b` have two forms. `dot` is for few columns: it reads rows of `a`
// once in their stored type, and memory bandwidth is the limit. A *panel* is for many columns: `panel_rows` rows of `a`
// are interleaved and decoded once, and then multiplied by all columns. Both forms accept rows of `a` in the tensor's
// layout, or *packed* rows: `panel_rows` rows interleaved but not decoded. Weights that were repacked at load are
// stored this way (packed_layout.h). In every form, the operations on an element of the result, and their order, do not
// depend on the other rows and columns of the call. Different forms round differently.
//
// There are three kinds of columns (activations), see Columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cpu/kernels/attention.h"
#include "devices/cpu/kernels/state_ops.h"
#include "graph/dtype.h"

namespace shoal::cpu {

/// c[j][c_row + i] = row i of a times column j, over k elements. For packed rows, `a` is 64-byte aligned.
struct DotArgs {
  const std::byte* a = nullptr;
  size_t a_stride = 0;  ///< bytes between rows, or between packed groups
  int64_t rows = 0;     ///< number of rows to compute
  int64_t k = 0;        ///< a multiple of the block size
  const std::byte* const* b = nullptr;
  float* const* c = nullptr;
  int64_t columns = 0;
  int64_t c_row = 0;
};

/// c[j][c_row + i] (+)= row i of the panels times column j, over elements [k_begin, k_begin + k) of the columns.
struct PanelArgs {
  const std::byte* panel = nullptr;  ///< 64-byte aligned
  size_t panel_stride = 0;           ///< bytes between panels, if there are more than panel_rows rows
  int64_t rows = 0;                  ///< number of rows to compute
  int64_t k_begin = 0;               ///< a multiple of kPanelStep
  int64_t k = 0;
  int64_t k_total = 0;  ///< length of the columns
  const std::byte* const* b = nullptr;
  float* const* c = nullptr;
  int64_t columns = 0;
  int64_t c_row = 0;
  bool add = false;  ///< whether to add to c instead of overwriting it
};

/// Panels are cut along k at multiples of this number, which is a multiple of every block size.
inline constexpr int64_t kPanelStep = 256;

/// The kinds of columns. x' is the value that a kernel uses for element x. `most` is the largest magnitude of the 32
/// elements that include x.
enum class Columns : uint8_t {
  kFloats,  ///< unchanged f32
  kBytes,   ///< for quantised weights: |x - x'| <= most / 254 for panels, and most / 64770 for dots
  /// For panels of f16 and bf16 weights, which are converted to fixed-point numbers: |x - x'| <= most / 16382. `most`
  /// excludes outliers (column.h); PanelKernels::add_outliers adds their products.
  kWords,
};
inline constexpr int kColumnKinds = 3;

struct ColumnKernels {
  size_t (*bytes)(int64_t k) = nullptr;  ///< bytes of one column; k is a multiple of 64
  void (*convert)(const float* x, std::byte* column, int64_t k) = nullptr;
};

/// All members are nullptr if rows of the dtype are not packed.
struct PackedKernels {
  /// Bytes of a group of panel_rows rows with k elements each; a multiple of 64.
  size_t (*bytes)(int64_t k) = nullptr;
  /// Packs `count` rows, at most panel_rows. The other rows of the group become zero.
  void (*pack)(const std::byte* rows, size_t stride, int64_t count, int64_t k, std::byte* group) = nullptr;
  /// Restores elements [k_begin, k_begin + k) of row `row` of a group, bit for bit. k_begin is a multiple of
  /// kPanelStep.
  void (*unpack)(const std::byte* group, int64_t row, int64_t k_begin, int64_t k, std::byte* to) = nullptr;
  void (*dot)(const DotArgs& args) = nullptr;
};

struct PanelKernels {
  Columns columns = Columns::kFloats;
  size_t (*bytes)(int64_t k) = nullptr;  ///< bytes of a panel with k elements per row; a multiple of 64
  /// Decodes k elements of each of `rows` rows, at most panel_rows. The other rows of the panel are arbitrary.
  void (*from_rows)(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel) = nullptr;
  /// Decodes elements [k_begin, k_begin + k) of a packed group. k_begin is a multiple of kPanelStep.
  void (*from_packed)(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel) = nullptr;
  void (*multiply)(const PanelArgs& args) = nullptr;
  /// Adds to c the products of the stored weights and the outliers of the columns. nullptr if the columns have no
  /// outliers.
  void (*add_outliers)(const DotArgs& args) = nullptr;
  void (*add_packed_outliers)(const DotArgs& args) = nullptr;
};

struct WeightKernels {
  Columns dot_columns = Columns::kFloats;
  void (*dot)(const DotArgs& args) = nullptr;
  PackedKernels packed;  ///< also read columns of the kind dot_columns
  PanelKernels panels;
  /// Same results as DTypeTraits::to_f32, bit for bit.
  void (*to_f32)(const void* src, float* dst, int64_t n) = nullptr;
};

struct VectorKernels {
  /// y[i] = exp(x[i] - shift), within 2 units in the last place; -infinity gives 0. Returns the sum. y may equal x.
  float (*exp)(const float* x, float shift, float* y, int64_t n);
  /// The largest element; -infinity if n is 0.
  float (*max)(const float* x, int64_t n);
};

/// For each destination `out`: out[out_first + i] = sources[0][first + i] + sources[1][first + i] + ... for i < n. The
/// sums are added in this order in f32 and rounded once. A destination may also be a source if first equals out_first.
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
/// If an operand does not step, its single element is used for all i.
using BinaryKernel = void (*)(const float* a, bool a_steps, const float* b, bool b_steps, float* to, int64_t n);
inline constexpr int kUnaryKernelCount = 0
#define SHOAL_UNARY(id, name) +1
#include "graph/activations.def"
    ;
inline constexpr int kGluKernelCount = 0
#define SHOAL_GLU(id, name) +1
#include "graph/activations.def"
    ;

/// The array `quarters` of `turn` must be readable up to a multiple of this number.
inline constexpr int64_t kTurnStep = 16;

/// Loops of row-wise ops over n elements of f32. Results may overwrite operands. The operations on an element do not
/// depend on the element's position.
struct RowKernels {
  const UnaryKernel* unary;    ///< by UnaryKind
  const GluKernel* glu;        ///< by GluKind: to[i] = f(gate[i]) * up[i]
  const BinaryKernel* binary;  ///< +, -, *, /
  /// to[i] = x[i] * scale + bias.
  void (*scale)(const float* x, float scale, float bias, float* to, int64_t n);
  /// NaN stays NaN.
  void (*clamp)(const float* x, float low, float high, float* to, int64_t n);
  /// Sum, computed in double.
  double (*sum)(const float* x, int64_t n);
  /// Sum of (x[i] - shift)^2, computed in double.
  double (*sum_squares)(const float* x, double shift, int64_t n);
  /// to[i] = (x[i] - shift) * factor.
  void (*normalize)(const float* x, float shift, float factor, float* to, int64_t n);
  /// to[i] = x[i] * scale + mask[i], or x[i] * scale without a mask. -infinity in the mask gives -infinity. Returns the
  /// largest result.
  float (*logits)(const float* x, const float* mask, float scale, float* to, int64_t n);
  /// Computes the rope factors of one position: 2 * pairs cosines of the angles, then 2 * pairs sines, all times scale.
  /// With `neighbours`, elements 2 i and 2 i + 1 contain the factors of pair i, and the first of the two sines is
  /// negative. Without `neighbours`, only the first `pairs` cosines and sines are written. quarters[i] is the angle of
  /// pair i per position, in units of a quarter rotation. The array must be readable up to a multiple of kTurnStep.
  void (*turn)(const double* quarters, double position, double scale, int64_t pairs, bool neighbours, float* factors);
  /// These functions rotate elements by the factors from `turn`. rotate_neighbours: n elements, as pairs of neighbours.
  /// rotate_halves: n pairs of low[i] and high[i].
  void (*rotate_neighbours)(const float* x, const float* cosines, const float* sines, int64_t n, float* to);
  void (*rotate_halves)(const float* low, const float* high, const float* cosines, const float* sines, int64_t n,
                        float* to_low, float* to_high);
  /// Same results as DTypeTraits::from_f32, bit for bit, except that the bits of a NaN may differ. nullptr if no faster
  /// version exists.
  void (*from_f32[kDTypeCount])(const float* src, void* dst, int64_t n);
  /// For f32, f16 and bf16.
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
