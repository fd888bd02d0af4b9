// Products that read every weight once for up to eight columns: what mul_mat, mul_mat_id and their fused forms have in
// common. In two steps:
//
//   1. prepare_columns(): b becomes what the kernels take - records of 8-bit integers for quantised weights
//      (devices/cuda/kernels/quantized_dot.h), rows of f32 for others - in the node's workspace
//   2. multiply(): a warp takes some rows of a matrix and up to two or eight columns, or several warps share them, each
//      with its part of k; the warps' sums are added in their order
//
// A job is a matrix with the columns that are multiplied at a time; Columns tells which they are.
#pragma once

#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

inline constexpr int kVecThreads = 128;
inline constexpr int kVecWarps = kVecThreads / 32;
/// Columns that a kernel takes at most.
inline constexpr int kVecColumns = 8;

/// Where a job's columns come from.
enum class ColumnsOf : uint8_t {
  kBatches,  ///< mul_mat: job / chunks is the matrix, its columns are those of the batches that share it
  kPairs,    ///< mul_mat_id: a job is a (slot, token) pair, with one column
  kGroups,   ///< mul_mat_id: a job is a group of pairs with one expert
};

/// Everything that a kernel of step 2 knows; passed by value.
struct Product {
  // Matrices: row r of matrix i is at a + r * row_stride + i % matrices2 * strides[0] + i / matrices2 * strides[1].
  const std::byte* a = nullptr;
  const std::byte* up = nullptr;  ///< second matrix of a gated unit, laid out alike: act(a x) * (up x)
  int64_t row_stride = 0, matrix_strides[2] = {};
  int matrices2 = 1;
  int m = 0, k = 0;

  // Prepared columns.
  const std::byte* x = nullptr;
  int64_t x_stride = 0;

  // Result, and what is added to it (f32, or nullptr).
  std::byte* c = nullptr;
  int64_t c_strides[3] = {};
  const std::byte* addend = nullptr;
  int64_t addend_strides[3] = {};

  ColumnsOf columns_of = ColumnsOf::kBatches;
  GluKind glu = GluKind::kSwiglu;  ///< where up is given
  int jobs = 0;
  int chunks = 1, n = 1, shared[2] = {1, 1}, b2 = 1;  ///< kBatches
  int slots = 1, x_slots = 1;                         ///< others
  const int32_t* experts = nullptr;                   ///< kPairs: by pair, -1: not here
  const ColumnGroup* groups = nullptr;                ///< kGroups
  const int32_t* order = nullptr;
  const int32_t* group_count = nullptr;

  int split = 1;  ///< warps that share rows: 1, 2 or 4
};

/// A kernel with what it wants at launch.
struct VecKernel {
  void (*kernel)(Product) = nullptr;
  int rows = 1;  ///< of a warp
  int columns = 1;
  size_t shared_bytes = 0;
};

/// The kernels of a weight dtype: for up to two columns and up to eight.
struct VecKernels {
  VecKernel two, eight;
};

#define SHOAL_QUANTIZED(id, ...) extern const VecKernels kVec##id;
#include "graph/dtypes.def"
extern const VecKernels kVecF32, kVecF16, kVecBF16;

/// What mul_mat and mul_mat_id need of a, b and the result.
bool supports_product(const Tensor& node);

/// Bytes of all prepared columns of b for weights like a.
size_t columns_bytes(const Tensor& a, const Tensor& b);
/// Step 1. Returns where the columns are: `memory`, or b itself.
struct PreparedColumns {
  const std::byte* data;
  int64_t stride;
};
PreparedColumns prepare_columns(const LaunchContext& context, const Tensor& a, const Tensor& b, std::byte* memory);

/// Columns that are prepared for one are right for the other, the same b given.
bool same_columns(const Tensor& a, const Tensor& other);

/// Of a product the part that describes a, its rows and the result. `columns_of` and what belongs to it are left open.
Product product_of(const Tensor& a, const Tensor& c, PreparedColumns columns);
/// mul_mat: the columns of all batches. A job takes up to `columns` of them.
void set_batches(Product& product, const Tensor& a, const Tensor& b, int columns);

/// The kernel for this many columns (more than 8: in turns of 8) and the rows of a. kernel == nullptr: multiply() uses
/// one that goes element by element, for one column.
VecKernel vec_kernel(const Tensor& a, const Tensor* up, int64_t columns);
/// Step 2.
void multiply(const LaunchContext& context, const Tensor& a, Product product, const VecKernel& kernel);

}  // namespace shoal::cuda
