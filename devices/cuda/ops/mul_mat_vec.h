// Products with up to eight columns, which read every weight once. mul_mat, mul_mat_id and their fused forms use these
// products. A product has two steps:
//
//   1. prepare_columns() converts b, in the node's workspace, to the form that the kernels read: records of 8-bit
//      integers for quantised weights (devices/cuda/kernels/quantized_dot.h), rows of f32 for other weights.
//   2. multiply(): a warp takes some rows of a matrix and up to two or eight columns. Or several warps share the rows,
//      each with a part of k; their sums are added in the order of warps.
//
// A job is a matrix and the columns by which one pass multiplies it. ColumnsOf states the source of the columns.
#pragma once

#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

inline constexpr int kVecThreads = 128;
inline constexpr int kVecWarps = kVecThreads / 32;
/// Largest number of columns per kernel.
inline constexpr int kVecColumns = 8;

/// The source of a job's columns.
enum class ColumnsOf : uint8_t {
  kBatches,  ///< mul_mat: job i uses matrix i / chunks, with columns from all batches that share the matrix
  kPairs,    ///< mul_mat_id: one (slot, token) pair, with one column
  kGroups,   ///< mul_mat_id: a group of pairs that have the same expert
};

/// The argument of the kernels of step 2, passed by value.
struct Product {
  // Row r of matrix i is at a + r * row_stride + i % matrices2 * strides[0] + i / matrices2 * strides[1].
  const std::byte* a = nullptr;
  const std::byte* up = nullptr;  ///< second matrix of a gated unit, with the same layout: act(a x) * (up x)
  int64_t row_stride = 0, matrix_strides[2] = {};
  int matrices2 = 1;
  int m = 0, k = 0;

  // Prepared columns.
  const std::byte* x = nullptr;
  int64_t x_stride = 0;

  // The result, and the addend (nullptr: no addend). Both are f32.
  std::byte* c = nullptr;
  int64_t c_strides[3] = {};
  const std::byte* addend = nullptr;
  int64_t addend_strides[3] = {};

  ColumnsOf columns_of = ColumnsOf::kBatches;
  GluKind glu = GluKind::kSwiglu;  ///< used only if `up` is set
  int jobs = 0;
  int chunks = 1, n = 1, shared[2] = {1, 1}, b2 = 1;  ///< used only for kBatches
  int slots = 1, x_slots = 1;                         ///< used only for kPairs and kGroups
  const int32_t* experts = nullptr;                   ///< used only for kPairs, indexed by pair; -1: the expert is on
                                                      ///< another device
  const ColumnGroup* groups = nullptr;                ///< used only for kGroups
  const int32_t* order = nullptr;
  const int32_t* group_count = nullptr;

  int split = 1;  ///< number of warps that share rows: 1, 2 or 4
};

/// A kernel with its launch parameters.
struct VecKernel {
  void (*kernel)(Product) = nullptr;
  int rows = 1;  ///< number of rows per warp
  int columns = 1;
  size_t shared_bytes = 0;
};

/// The kernels for a dtype of weights: for up to two columns and for up to eight columns.
struct VecKernels {
  VecKernel two, eight;
};

#define SHOAL_QUANTIZED(id, ...) extern const VecKernels kVec##id;
#include "graph/dtypes.def"
extern const VecKernels kVecF32, kVecF16, kVecBF16;

/// Whether mul_mat and mul_mat_id support `a`, `b` and the result.
bool supports_product(const Tensor& node);

/// Bytes of all prepared columns of b, for weights of `a`'s dtype.
size_t columns_bytes(const Tensor& a, const Tensor& b);
/// The result of step 1: columns in `memory`, or b itself if it needs no conversion.
struct PreparedColumns {
  const std::byte* data;
  int64_t stride;
};
PreparedColumns prepare_columns(const LaunchContext& context, const Tensor& a, const Tensor& b, std::byte* memory);

/// Whether columns that are prepared for `a` are also suitable for `other`.
bool same_columns(const Tensor& a, const Tensor& other);

/// Sets the fields for `a`, its rows, the columns and the result. Does not set `columns_of` and the fields that depend
/// on it.
Product product_of(const Tensor& a, const Tensor& c, PreparedColumns columns);
/// For mul_mat: distributes the columns of all batches to jobs of up to `columns` columns.
void set_batches(Product& product, const Tensor& a, const Tensor& b, int columns);

/// Returns the kernel for this number of columns and for the rows of `a`. More than 8 columns are computed 8 at a time.
/// If the returned `kernel` is nullptr, multiply() uses an element-wise kernel for one column.
VecKernel vec_kernel(const Tensor& a, const Tensor* up, int64_t columns);
/// Step 2: multiplies the matrices by the prepared columns.
void multiply(const LaunchContext& context, const Tensor& a, Product product, const VecKernel& kernel);

}  // namespace shoal::cuda
