// The inner loops of the CPU devices. Each instruction-set level has one table of kernels, and devices/cpu/isa.h
// chooses the level. Kernels access only the memory to which their arguments point, and kernels never fail. Any thread
// may call kernels. This header and its includes contain no inline functions. Files compiled for different instruction
// sets include this header, and the linker would keep an arbitrary copy of an inline function.
//
// Matrix products of the weights `a` and the columns `b` have two forms with the same bits. `dot` is for a few columns.
// It reads rows or packed groups once, and memory bandwidth limits its speed. A *panel* is for more columns.
// `panel_rows` rows of `a` are interleaved and decoded once, and then multiplied by all columns. Both forms accept rows
// in the tensor's layout and *packed* groups. In a packed group, `panel_rows` rows are interleaved but not decoded.
// Weights that were repacked at load have packed groups (packed_layout.h).
//
// The operations on an element of the result, and their order, depend only on the row, the column and the dtype. For
// f32 weights, the products of kFloatBlock elements are added one after another, and the sums of these blocks are added
// in order. For other weights, the integer products of 32 elements (or of 16 elements, if 16 elements share a scale)
// are summed exactly. The scaled sums are added one after another. Products of outliers are added last.
//
// There are three kinds of columns (activations); see Columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cpu/kernels/attention.h"
#include "devices/cpu/kernels/conv.h"
#include "devices/cpu/kernels/images.h"
#include "devices/cpu/kernels/state_ops.h"
#include "graph/dtype.h"

namespace shoal::cpu {

/// c[j][c_row + i] = row i of `a` times column j, over k elements. Packed groups must be 64-byte aligned.
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

/// c[j][c_row + i] = row i of the panels times column j, over elements [k_begin, k_begin + k) of the columns. With
/// `add`, c contains the product of earlier elements. Columns of f32: k_begin is a multiple of kFloatBlock and k is at
/// most kFloatBlock, or the sums have other blocks. For other columns, k_begin and k do not affect the bits of the
/// result.
struct PanelArgs {
  const std::byte* panel = nullptr;  ///< 64-byte aligned
  size_t panel_stride = 0;           ///< bytes between panels, used if rows > panel_rows
  int64_t rows = 0;                  ///< number of rows to compute
  int64_t k_begin = 0;               ///< a multiple of kPanelStep; any number for f32
  int64_t k = 0;
  int64_t k_total = 0;  ///< number of elements of a whole column
  const std::byte* const* b = nullptr;
  float* const* c = nullptr;
  int64_t columns = 0;
  int64_t c_row = 0;
  bool add = false;  ///< if true, the sums continue from c; otherwise, the sums start from zero
};

/// Panels are cut along k at multiples of this number. The number is a multiple of every block size.
inline constexpr int64_t kPanelStep = 256;
/// Number of consecutive f32 products that are added before their sum is added to the sums of other blocks.
inline constexpr int64_t kFloatBlock = 512;

/// The kinds of columns. x' is the value that a kernel uses for element x. `most` is the largest magnitude in the group
/// of 32 elements that includes x.
enum class Columns : uint8_t {
  kFloats,  ///< unchanged f32
  kBytes,   ///< for quantised weights; |x - x'| <= most / 254
  /// For f16 and bf16 weights. These weights are converted to fixed-point numbers (words.h). |x - x'| <= most / 16382.
  /// `most` excludes outliers (column.h). PanelKernels::add_outliers adds the products of the outliers.
  kWords,
};
inline constexpr int kColumnKinds = 3;

struct ColumnKernels {
  size_t (*bytes)(int64_t k) = nullptr;  ///< size of one column in bytes; this size is a multiple of 64
  void (*convert)(const float* x, std::byte* column, int64_t k) = nullptr;
};

/// All functions are nullptr if rows of the dtype are not packed.
struct PackedKernels {
  /// Size of a group in bytes, a multiple of 64. A group has panel_rows rows of k elements.
  size_t (*bytes)(int64_t k) = nullptr;
  /// Packs `count` rows into a group. `count` is at most panel_rows. The remaining rows of the group become zero.
  void (*pack)(const std::byte* rows, size_t stride, int64_t count, int64_t k, std::byte* group) = nullptr;
  /// Restores elements [k_begin, k_begin + k) of row `row` of a group. The bits of the elements are the same as before
  /// packing. k_begin is a multiple of kPanelStep.
  void (*unpack)(const std::byte* group, int64_t row, int64_t k_begin, int64_t k, std::byte* to) = nullptr;
  /// nullptr: panels are faster for any number of columns.
  void (*dot)(const DotArgs& args) = nullptr;
  int64_t dot_columns = 0;  ///< largest number of columns for which `dot` is faster than panels
};

struct PanelKernels {
  size_t (*bytes)(int64_t k) = nullptr;  ///< size in bytes of a panel with k elements per row; this size is a multiple
                                         ///< of 64
  /// Decodes k elements of each of `rows` rows into a panel. `rows` is at most panel_rows. The remaining rows of the
  /// panel are arbitrary.
  void (*from_rows)(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel) = nullptr;
  /// Decodes elements [k_begin, k_begin + k) of a packed group into a panel. k_begin is a multiple of kPanelStep.
  void (*from_packed)(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel) = nullptr;
  void (*multiply)(const PanelArgs& args) = nullptr;
  /// Multiplies the stored weights by the outliers of the columns, and adds the products to c. The pointer is nullptr
  /// if columns of this kind have no outliers.
  void (*add_outliers)(const DotArgs& args) = nullptr;
  void (*add_packed_outliers)(const DotArgs& args) = nullptr;
  /// Whether a packed group is a panel of all elements of its rows. A part of the group that begins at any element is
  /// also a panel.
  bool is_packed = false;
};

struct WeightKernels {
  Columns columns = Columns::kFloats;  ///< kind of columns that all kernels of the dtype read
  /// Multiplies rows in the tensor's layout. nullptr: panels are faster for any number of columns.
  void (*dot)(const DotArgs& args) = nullptr;
  int64_t dot_columns = 0;  ///< largest number of columns for which `dot` is faster than panels
  PackedKernels packed;
  PanelKernels panels;  ///< all members are nullptr for integers
  /// Converts n elements like DTypeTraits::to_f32, bit for bit.
  void (*to_f32)(const void* src, float* dst, int64_t n) = nullptr;
};

struct VectorKernels {
  /// y[i] = exp(x[i] - shift), within 2 units in the last place. The result for -infinity is 0. Returns the sum of all
  /// y[i]. `y` may equal `x`.
  float (*exp)(const float* x, float shift, float* y, int64_t n);
  /// Returns the largest element, or -infinity if n is 0.
  float (*max)(const float* x, int64_t n);
};

/// For each destination `out`: out[out_first + i] = sources[0][first + i] + sources[1][first + i] + ... for i < n. The
/// additions are in this order in f32. The sum is rounded once to the type of the arrays. A destination may also be a
/// source if first equals out_first.
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
/// If a_steps is true, `a` has n elements. Otherwise a[0] is used for all i. The same rule applies to b_steps and `b`.
using BinaryKernel = void (*)(const float* a, bool a_steps, const float* b, bool b_steps, float* to, int64_t n);
/// to[i] is an i32: 1 if the comparison of a[i] and b[i] holds, else 0.
using CompareKernel = void (*)(const void* a, const void* b, void* to, int64_t n);
inline constexpr int kUnaryKernelCount = 0
#define SHOAL_UNARY(id, name) +1
#include "graph/activations.def"
    ;
inline constexpr int kGluKernelCount = 0
#define SHOAL_GLU(id, name) +1
#include "graph/activations.def"
    ;

/// The kernel RowKernels::turn may read its argument `quarters` up to the next multiple of this number of elements.
inline constexpr int64_t kTurnStep = 16;

/// Loops of row-wise ops over n elements of f32. Results may overwrite operands. The operations on an element do not
/// depend on the element's position.
struct RowKernels {
  const UnaryKernel* unary;    ///< indexed by UnaryKind
  const GluKernel* glu;        ///< indexed by GluKind: to[i] = f(gate[i]) * up[i]
  const BinaryKernel* binary;  ///< in the order +, -, *, /
  /// Kernels for f32 and for i32, each indexed by CompareKind.
  const CompareKernel* compare[2];
  /// to[i] = condition[i] != 0 ? a[i] : b[i], for elements of 2 or 4 bytes.
  void (*select_halves)(const int32_t* condition, const uint16_t* a, const uint16_t* b, uint16_t* to, int64_t n);
  void (*select_words)(const int32_t* condition, const uint32_t* a, const uint32_t* b, uint32_t* to, int64_t n);
  /// to[i] = x[i] * scale + bias.
  void (*scale)(const float* x, float scale, float bias, float* to, int64_t n);
  /// Limits each element to [low, high]. NaN stays NaN.
  void (*clamp)(const float* x, float low, float high, float* to, int64_t n);
  /// Returns the sum of x, computed in double.
  double (*sum)(const float* x, int64_t n);
  /// Returns the sum of (x[i] - shift)^2, computed in double.
  double (*sum_squares)(const float* x, double shift, int64_t n);
  /// to[i] = (x[i] - shift) * factor.
  void (*normalize)(const float* x, float shift, float factor, float* to, int64_t n);
  /// to[i] = x[i] * scale + mask[i], or x[i] * scale if `mask` is nullptr. If mask[i] is -infinity, to[i] is -infinity.
  /// Returns the largest result.
  float (*logits)(const float* x, const float* mask, float scale, float* to, int64_t n);
  /// Computes the rope factors of one position: 2 * pairs cosines of the angles, then 2 * pairs sines. All factors are
  /// multiplied by `scale`.
  /// - With `neighbours`, elements 2 i and 2 i + 1 contain the factors of pair i. The first of the two sines is
  ///   negated.
  /// - Without `neighbours`, only the first `pairs` cosines and sines are written.
  /// quarters[i] is the angle of pair i per position, in units of a quarter rotation. `quarters` must be readable up to
  /// the next multiple of kTurnStep elements.
  void (*turn)(const double* quarters, double position, double scale, int64_t pairs, bool neighbours, float* factors);
  /// Two functions rotate elements by the factors from `turn`. rotate_neighbours() rotates n elements, which are pairs
  /// of neighbours. rotate_halves() rotates n pairs of low[i] and high[i].
  void (*rotate_neighbours)(const float* x, const float* cosines, const float* sines, int64_t n, float* to);
  void (*rotate_halves)(const float* low, const float* high, const float* cosines, const float* sines, int64_t n,
                        float* to_low, float* to_high);
  /// These functions convert n elements with the same result bits as DTypeTraits::from_f32. Only the bits of a NaN may
  /// differ. An entry is nullptr if no function is faster than DTypeTraits::from_f32.
  void (*from_f32[kDTypeCount])(const float* src, void* dst, int64_t n);
  /// The functions for f32, f16 and bf16, in this order.
  void (*sum_arrays[3])(const SumArgs& args);
};

struct Kernels {
  int64_t panel_rows;
  ColumnKernels columns[kColumnKinds];  ///< indexed by kind; k is a multiple of 32 for kBytes
  VectorKernels vector;
  AttentionKernels attention;
  RowKernels rows;
  ImageKernels images;
  void (*causal_conv)(const ConvArgs& args);
  void (*conv_panels)(const ConvPanels& args);
  void (*conv_rows)(const ConvPanels& args, const PanelArgs& product);
  void (*gated_delta)(const DeltaArgs& args);
  WeightKernels weights[kDTypeCount];  ///< indexed by dtype
};

}  // namespace shoal::cpu
