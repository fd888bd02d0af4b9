// What mul_mat and mul_mat_id have in common. Both multiply several matrices (batches of a, or experts), each by some
// columns: rows of b, each with a place in the result. They differ in which column belongs to which matrix.
//
//   1. convert_columns(): b becomes what the kernels take
//   2. the op lists the columns of each matrix in ProductMemory
//   3. multiply(): the rows of the matrices
//
// 1 and 2 are prepare() of the op, 3 is run(). In mul_mat with few columns each part does 1 and 2 for itself.
//
// A matrix with few columns is multiplied row by row as it is stored (or packed, devices/cpu/packed_buffer.h); one with
// many is decoded in panels (see devices/cpu/kernels/kernels.h). The choice and the order of sums depend on k and the
// number of columns alone, so an element of the result has the same bits for any number of parts and wherever the
// rows of a are cut, as long as these are packed everywhere or nowhere: the two are summed in different orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/op_kernel.h"
#include "graph/tensor.h"

namespace shoal::cpu {

/// Columns from which on panels are faster.
inline constexpr int64_t kPanelColumns = 5;
/// As ProductShape::panels_from: panels for all matrices, or for none.
inline constexpr int64_t kAlways = 0;
inline constexpr int64_t kNever = INT64_MAX;

/// The node's products as numbers; every part computes them anew.
struct ProductShape {
  /// Works for both ops: their sources 0 and 1 are a and b.
  ProductShape(const Tensor& node, int64_t matrices, int64_t columns, int64_t panels_from);

  int64_t m, k;  ///< rows of a matrix, and their length
  int64_t matrices;
  int64_t columns;      ///< of all matrices together
  int64_t panels_from;  ///< matrices with at least this many columns use panels
  int64_t k_step;       ///< panels are cut along k at multiples of this
  bool gathered;        ///< rows of a have gaps: they are copied before they are packed
  Columns kind;         ///< what the kernels take as columns
  bool converted;       ///< b cannot be used as it is
  size_t column_bytes;  ///< of a converted column
};

/// The node's workspace.
struct ProductMemory {
  /// `copies`: how many parts have columns and lists of their own; those that this object means are number `copy`.
  ProductMemory(const ProductShape& shape, int64_t b_rows, int parts, std::byte* workspace, int copies = 1,
                int copy = 0);

  std::byte* converted;  ///< rows of b, column_bytes each
  const std::byte** b;   ///< by column: what the kernels read
  float** c;             ///< by column: its place in the result
  int64_t* first;        ///< first column of each matrix, and behind the last one `columns`
  std::byte* scratch;    ///< scratch_bytes for each part
  size_t scratch_bytes;
  size_t bytes;  ///< of all this
};

/// Converts rows [begin, end) of b (counted over its axes 1 to 3) in part `part`; nothing to do when they are used
/// as they are.
void convert_columns(const Tensor& b, std::pair<int64_t, int64_t> rows, int part, const ProductShape& shape,
                     const ProductMemory& memory);

/// Row number `row` of b as the kernels read it.
const std::byte* column_at(const Tensor& b, int64_t row, const ProductShape& shape, const ProductMemory& memory);

/// This part's share of the products, and what others have not begun of theirs (for_shared()): cores and their paths to
/// memory are never equally fast. Matrix i of a is index i over its axes 2 and 3.
void multiply(const TeamContext& ctx, const Tensor& a, const ProductShape& shape, const ProductMemory& memory);

/// What both ops need of a, b and the result.
bool supports_product(const Tensor& node);

}  // namespace shoal::cpu
