// The op mul_mat. Each matrix of `a` (axes 2 and 3) is multiplied by all rows of `b` whose batch indices map to this
// matrix.
#include <cstring>

#include "devices/cpu/ops/mul_mat_product.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

ProductShape shape_of(const Tensor& node) {
  return {node, node.src[0]->shape[2] * node.src[0]->shape[3], node.rows()};
}

/// Maps a column to a row of `b` and of the result. Each matrix of `a` is multiplied by n rows from each of shared2 x
/// shared3 batches. Example: `a` is [k, m, 2, 1] and `b` is [k, n, 6, 1]. Then matrix 1 is multiplied by the rows of
/// batches 3, 4 and 5.
struct RowsOfB {
  explicit RowsOfB(const Tensor& node)
      : node(node), shared2(node.shape[2] / node.src[0]->shape[2]), shared3(node.shape[3] / node.src[0]->shape[3]) {}
  int64_t per_matrix() const { return node.shape[1] * shared2 * shared3; }
  RowIndex operator()(int64_t column) const {
    const int64_t matrix = column / per_matrix(), n = node.shape[1], i = column % per_matrix() / n;
    const int64_t matrices2 = node.src[0]->shape[2];
    return {column % n, matrix % matrices2 * shared2 + i % shared2, matrix / matrices2 * shared3 + i / shared2};
  }
  const Tensor& node;
  int64_t shared2, shared3;
};

/// Largest number of columns that each part converts for itself. This is faster than to wait for other parts.
constexpr int64_t kOwnColumns = 4;

/// Whether each part converts and lists all columns for itself. If true, prepare() is not needed.
bool has_own_columns(const ProductShape& shape) {
  return shape.columns <= kOwnColumns;
}

ProductMemory memory_of(const Tensor& node, const ProductShape& shape, int parts, int part, std::byte* workspace) {
  const bool own = has_own_columns(shape);
  return {shape, node.src[1]->rows(), parts, workspace, own ? parts : 1, own ? part : 0};
}

/// Writes entries [begin, end) of the list of columns.
void list_columns(std::pair<int64_t, int64_t> entries, const ProductShape& shape, const ProductMemory& memory,
                  const Tensor& node) {
  const Tensor& b = *node.src[1];
  const RowsOfB columns(node);
  for (int64_t i = entries.first; i < entries.second; ++i) {
    const RowIndex row = columns(i);
    memory.b[i] = column_at(b, (row.i3 * b.shape[2] + row.i2) * b.shape[1] + row.i1, shape, memory);
    memory.c[i] = shape.narrow ? memory.wide + ((row.i3 * node.shape[2] + row.i2) * node.shape[1] + row.i1) * shape.m
                               : reinterpret_cast<float*>(row_at(node, row));
  }
}

/// Writes the index of the first column of each matrix.
void list_matrices(const ProductShape& shape, const ProductMemory& memory, const Tensor& node) {
  const int64_t columns = RowsOfB(node).per_matrix();
  for (int64_t i = 0; i <= shape.matrices; ++i) memory.first[i] = i * columns;
}

/// Converts and lists this part's share of the columns. If each part needs its own copy, processes all columns.
void make_columns(const TeamContext& ctx, const Tensor& node, const ProductShape& shape, const ProductMemory& memory) {
  const Tensor& b = *node.src[1];
  const bool own = has_own_columns(shape);
  const auto part = [&](int64_t count) { return own ? std::pair<int64_t, int64_t>(0, count) : share(ctx, count); };
  if (!ctx.follows) convert_columns(b, part(b.rows()), ctx.part, shape, memory);
  list_columns(part(shape.columns), shape, memory, node);
  if (own || ctx.part == 0) list_matrices(shape, memory, node);
}

void prepare(const TeamContext& ctx, Tensor& node) {
  const ProductShape shape = shape_of(node);
  if (shape.k > 0) make_columns(ctx, node, shape, memory_of(node, shape, ctx.parts, ctx.part, ctx.workspace));
}

bool prepares(const Tensor& node, int) {
  return !has_own_columns(shape_of(node));
}

void run(const TeamContext& ctx, Tensor& node) {
  const ProductShape shape = shape_of(node);
  if (shape.k == 0) {
    for_rows(ctx, node.shape, [&](RowIndex row) { std::memset(row_at(node, row), 0, bytes_for(node.dtype, shape.m)); });
    return;
  }
  const ProductMemory memory = memory_of(node, shape, ctx.parts, ctx.part, ctx.workspace);
  if (has_own_columns(shape)) make_columns(ctx, node, shape, memory);
  multiply(ctx, *node.src[0], shape, memory);
}

/// Whether `before` multiplies the same columns as `node` and converts them to the same type. Example: the product for
/// the keys follows the product for the queries.
bool can_follow(const Tensor& before, const Tensor& node) {
  if (before.op != Op::kMulMat || before.src[1] != node.src[1] || before.empty()) return false;
  const ProductShape a = shape_of(before), b = shape_of(node);
  return a.converted && b.converted && a.kind == b.kind && a.k == b.k;
}

size_t workspace(const Tensor& node, int parts) {
  return memory_of(node, shape_of(node), parts, 0, nullptr).bytes;
}

int64_t work(const Tensor& node) {
  return node.elements() * node.src[0]->shape[0];
}

}  // namespace

const OpKernel kMulMatKernel{run, supports_product, workspace, work, can_follow, prepare, prepares};

}  // namespace shoal::cpu
