// Products with up to eight columns. A product reads every weight once. mul_mat, mul_mat_id and their fused forms use
// these products. A product has two steps:
//
//   1. prepare_columns() converts b to the form that the kernels read. For quantised weights, this form is records of
//      8-bit integers (devices/cuda/kernels/quantized_dot.h). For other weights, this form is rows of f32. The node's
//      workspace holds the converted columns.
//   2. In multiply(), each warp multiplies some rows of a matrix by up to two columns or by up to eight columns (two
//      kernels). Alternatively, several warps compute the same rows, each for a part of k. The sums of these warps are
//      added in the order of the warps.
//
// A job is a matrix and the columns by which one pass multiplies this matrix. ColumnsOf states the source of the
// columns.
#pragma once

#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

inline constexpr int kVecThreads = 128;
inline constexpr int kVecWarps = kVecThreads / 32;
/// Largest number of columns that one job can have.
inline constexpr int kVecColumns = 8;

/// The source of a job's columns.
enum class ColumnsOf : uint8_t {
  kBatches,  ///< mul_mat: job i uses matrix i / chunks; the job's columns come from all batches that share this matrix
  kPairs,    ///< mul_mat_id: one (expert slot, token) pair, with one column
  kGroups,   ///< mul_mat_id: a group of pairs that have the same expert
};

/// The argument of the kernels of step 2, passed by value.
struct Product {
  // The address of row r of matrix i is a + r * row_stride + i % matrices2 * matrix_strides[0] + i / matrices2 *
  // matrix_strides[1].
  const std::byte* a = nullptr;
  const std::byte* up = nullptr;  ///< second matrix of the gated product act(a x) * (up x); has the layout of `a`
  int64_t row_stride = 0, matrix_strides[2] = {};
  int matrices2 = 1;
  int m = 0, k = 0;

  // The prepared columns.
  const std::byte* x = nullptr;
  int64_t x_stride = 0;

  // The result c and the addend are f32. If `addend` is nullptr, the product has no addend.
  std::byte* c = nullptr;
  int64_t c_strides[3] = {};
  const std::byte* addend = nullptr;
  int64_t addend_strides[3] = {};

  ColumnsOf columns_of = ColumnsOf::kBatches;
  GluKind glu = GluKind::kSwiglu;  ///< used only if `up` is set
  int jobs = 0;
  int chunks = 1, n = 1, shared[2] = {1, 1}, b2 = 1;  ///< used only for kBatches
  int slots = 1, x_slots = 1;                         ///< used only for kPairs and kGroups
  const int32_t* experts = nullptr;                   ///< used only for kPairs; expert of each pair, or -1 if the
                                                      ///< expert is on another device
  const ColumnGroup* groups = nullptr;                ///< used only for kGroups
  const int32_t* order = nullptr;
  const int32_t* group_count = nullptr;

  int split = 1;  ///< number of warps that compute the same rows: 1, 2 or 4
};

/// A kernel with its launch parameters.
struct VecKernel {
  void (*kernel)(Product) = nullptr;
  int rows = 1;  ///< number of rows per warp
  int columns = 1;
  size_t shared_bytes = 0;
};

/// The kernels for weights of one dtype: one for up to two columns, one for up to eight columns.
struct VecKernels {
  VecKernel two, eight;
};

#define SHOAL_QUANTIZED(id, ...) extern const VecKernels kVec##id;
#include "graph/dtypes.def"
extern const VecKernels kVecF32, kVecF16, kVecBF16;

/// Whether the kernels of mul_mat and mul_mat_id support `a`, `b` and the result of the node.
bool supports_product(const Tensor& node);

/// Returns the size in bytes of all columns of b after they are prepared for weights of `a`'s dtype.
size_t columns_bytes(const Tensor& a, const Tensor& b);
/// The result of prepare_columns(): columns in `memory`, or b itself if b needs no conversion.
struct PreparedColumns {
  const std::byte* data;
  int64_t stride;
};
PreparedColumns prepare_columns(const LaunchContext& context, const Tensor& a, const Tensor& b, std::byte* memory);

/// Whether columns that are prepared for `a` are also suitable for `other`.
bool same_columns(const Tensor& a, const Tensor& other);

/// Sets the fields for `a`, its rows, the columns and the result. Sets neither `columns_of` nor the fields that depend
/// on `columns_of`.
Product product_of(const Tensor& a, const Tensor& c, PreparedColumns columns);
/// For mul_mat: divides the columns of all batches into jobs with up to `columns` columns each.
void set_batches(Product& product, const Tensor& a, const Tensor& b, int columns);

/// Returns the kernel for this number of columns and for the rows of `a`. If there are more than eight columns, the
/// caller must divide them into jobs. If the returned `kernel` is nullptr, multiply() uses an element-wise kernel for
/// one column.
VecKernel vec_kernel(const Tensor& a, const Tensor* up, int64_t columns);
/// Multiplies the matrices by the prepared columns (step 2).
void multiply(const LaunchContext& context, const Tensor& a, Product product, const VecKernel& kernel);

}  // namespace shoal::cuda
