// Common code of mul_mat and mul_mat_id. Both multiply several matrices (batches of a, or experts), each by its own
// columns: rows of b, each with a place in the result. The ops differ in the assignment of columns to matrices.
//
//   1. convert_columns(): converts b to the type that the kernels read
//   2. the op lists the columns of each matrix in ProductMemory
//   3. multiply(): multiplies the rows of the matrices
//
// prepare() of the op does steps 1 and 2, and run() does step 3. In mul_mat with few columns, each part does steps 1
// and 2 for itself in run().
//
// A matrix with few columns is multiplied row by row in its stored or packed form (devices/cpu/packed_buffer.h). A
// matrix with many columns is decoded into panels (devices/cpu/kernels/kernels.h). This choice and the order of sums
// depend only on k and the number of columns. So an element of the result has the same bits for any number of parts and
// any division of a's rows, if the rows are packed on all devices or on none. Packed and unpacked rows are summed in
// different orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/op_kernel.h"
#include "graph/tensor.h"

namespace shoal::cpu {

/// From this number of columns on, panels are faster.
inline constexpr int64_t kPanelColumns = 5;
/// Values of ProductShape::panels_from: panels for all matrices, or for none.
inline constexpr int64_t kAlways = 0;
inline constexpr int64_t kNever = INT64_MAX;

/// The sizes of the node's products. Every part computes them for itself.
struct ProductShape {
  /// For both ops, sources 0 and 1 are a and b.
  ProductShape(const Tensor& node, int64_t matrices, int64_t columns, int64_t panels_from);

  int64_t m, k;  ///< number of rows of a matrix, and length of a row
  int64_t matrices;
  int64_t columns;      ///< number of columns of all matrices together
  int64_t panels_from;  ///< matrices with at least this many columns use panels
  int64_t k_step;       ///< panels are cut along k at multiples of this
  bool gathered;        ///< whether rows of a have gaps and are copied before panels are made
  Columns kind;         ///< kind of columns that the kernels read
  bool converted;       ///< whether b must be converted
  size_t column_bytes;  ///< bytes of a converted column
};

/// The node's workspace.
struct ProductMemory {
  /// `copies` is the number of copies of columns and lists: one for each part if parts have their own copies. This
  /// object refers to copy number `copy`.
  ProductMemory(const ProductShape& shape, int64_t b_rows, int parts, std::byte* workspace, int copies = 1,
                int copy = 0);

  std::byte* converted;  ///< converted rows of b, column_bytes each
  const std::byte** b;   ///< for each column, the data that the kernels read
  float** c;             ///< for each column, its place in the result
  int64_t* first;        ///< index of the first column of each matrix; then `columns`
  std::byte* scratch;    ///< scratch_bytes for each part
  size_t scratch_bytes;
  size_t bytes;  ///< size of the whole workspace
};

/// Converts rows [begin, end) of b in part `part`. Row numbers count over axes 1 to 3. Does nothing if b is used in
/// place.
void convert_columns(const Tensor& b, std::pair<int64_t, int64_t> rows, int part, const ProductShape& shape,
                     const ProductMemory& memory);

/// Row number `row` of b in the form that the kernels read.
const std::byte* column_at(const Tensor& b, int64_t row, const ProductShape& shape, const ProductMemory& memory);

/// Multiplies this part's share of the rows, then rows that other parts have not begun (for_shared()). This balances
/// the load because cores and their paths to memory are never equally fast. Matrix i of a is index i over axes 2 and 3.
void multiply(const TeamContext& ctx, const Tensor& a, const ProductShape& shape, const ProductMemory& memory);

/// Whether a, b and the result meet the common requirements of both ops.
bool supports_product(const Tensor& node);

}  // namespace shoal::cpu
