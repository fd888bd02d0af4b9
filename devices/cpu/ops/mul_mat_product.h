// Common code of mul_mat and mul_mat_id. Both ops multiply several matrices. In mul_mat, the matrices are the batches
// of `a`. In mul_mat_id, the matrices are the experts. Each matrix is multiplied by its own columns. A column is a row
// of b and belongs to one row of the result. The two ops assign columns to matrices in different ways.
//
//   1. convert_columns(): converts b to the type that the kernels read
//   2. the op: lists the columns of each matrix in ProductMemory
//   3. multiply(): multiplies the rows of the matrices
//
// prepare() of the op does steps 1 and 2, and run() does step 3. If mul_mat has few columns, each part does steps 1 and
// 2 for itself in run().
//
// A matrix with a few columns is multiplied in its stored or packed form (devices/cpu/packed_buffer.h). A matrix with
// more columns is decoded into panels (devices/cpu/kernels/kernels.h). Both forms give the same bits. So an element of
// the result depends only on its row of a and its column. It does not depend on the number of columns, on the number of
// parts, or on the division of the rows of a. Only f16 and bf16 rows with gaps are multiplied as f32, with other bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/op_kernel.h"
#include "graph/tensor.h"

namespace shoal::cpu {

/// The dimensions of the node's products. Every part computes these dimensions for itself.
struct ProductShape {
  /// Sources 0 and 1 of the node are a and b for both ops.
  ProductShape(const Tensor& node, int64_t matrices, int64_t columns);

  int64_t m, k;  ///< number of rows of a matrix; number of elements of a row
  int64_t matrices;
  int64_t columns;       ///< number of columns of all matrices together
  int64_t k_step;        ///< maximum number of elements of a row in a panel
  bool gathered;         ///< whether rows of a have gaps and must be copied before panels are made
  Columns kind;          ///< kind of columns that the kernels read
  bool converted;        ///< whether b must be converted
  size_t column_bytes;   ///< size of a converted column in bytes
  const Tensor* narrow;  ///< the node if its result is f16 or bf16, else nullptr. The sums are then made in
                         ///< ProductMemory::wide, and the part that has made them converts them
};

/// The layout of the node's workspace.
struct ProductMemory {
  /// `copies` is the number of copies of the columns and of their lists. If each part needs its own copy, `copies` is
  /// the number of parts. This object refers to copy number `copy`.
  ProductMemory(const ProductShape& shape, int64_t b_rows, int parts, std::byte* workspace, int copies = 1,
                int copy = 0);

  std::byte* converted;  ///< converted rows of b, each with column_bytes bytes
  const std::byte** b;   ///< for each column, a pointer to the data that the kernels read
  float** c;             ///< for each column, a pointer to its row of the result, or of `wide` if there is one
  int64_t* first;        ///< index of the first column of each matrix; the last entry is `columns`
  std::byte* scratch;    ///< scratch_bytes bytes for each part
  size_t scratch_bytes;
  float* wide;   ///< the result as f32, if the node's result is f16 or bf16
  size_t bytes;  ///< size of the whole workspace in bytes
};

/// Converts rows [rows.first, rows.second) of b. Uses the scratch of part `part`. Rows are numbered over axes 1 to 3.
/// Does nothing if the kernels read b in place.
void convert_columns(const Tensor& b, std::pair<int64_t, int64_t> rows, int part, const ProductShape& shape,
                     const ProductMemory& memory);

/// Returns row number `row` of b in the form that the kernels read.
const std::byte* column_at(const Tensor& b, int64_t row, const ProductShape& shape, const ProductMemory& memory);

/// Multiplies this part's share of the rows. Then multiplies rows that other parts have not begun (for_shared()), to
/// balance the load. Cores differ in speed and in memory bandwidth. Matrix i of a has index i over axes 2 and 3.
void multiply(const TeamContext& ctx, const Tensor& a, const ProductShape& shape, const ProductMemory& memory);

/// Whether a, b and the result meet the common requirements of the two ops.
bool supports_product(const Tensor& node);

}  // namespace shoal::cpu
