// Products, table lookups and cache writes: see graph/ops/ops.h. The result of a cache write aliases the cache, so that
// later nodes that read this result see the new rows.
#include <limits>

#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::mul_mat(Tensor& node) {
  const Expect expect(node, "a b");
  const Tensor& a = *node.src[0];
  const Tensor& b = *node.src[1];
  expect.float_or_quantized(0);
  expect.is_float(1);
  expect(a.shape[0] == b.shape[0], "k = {}, got {}", a.shape[0], b.shape[0]);
  for (const int axis : {2, 3}) {
    expect(divides(a.shape[axis], b.shape[axis]), "axis {} of b to be a multiple of {}, got {}", axis, a.shape[axis],
           b.shape[axis]);
  }
  node.dtype = params_of<ProductParams>(node).dtype;
  expect(traits(node.dtype).is_float, "f32, f16 or bf16 as dtype of the result, got {}", name_of(node.dtype));
  node.shape = {a.shape[1], b.shape[1], b.shape[2], b.shape[3]};
}

Tensor* mul_mat(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return mul_mat(g, a, b, ProductParams{}, std::move(name));
}
Tensor* mul_mat(Graph& g, Tensor* a, Tensor* b, ProductParams params, std::string name) {
  return g.add_node(Op::kMulMat, params, {a, b}, std::move(name));
}

void infer::mul_mat_id(Tensor& node) {
  const Expect expect(node, "experts x ids");
  const Tensor& experts = *node.src[0];
  const Tensor& x = *node.src[1];
  const Tensor& ids = *node.src[2];
  expect.float_or_quantized(0);
  expect.dtype(1, {DType::kF32});
  expect.dtype(2, {DType::kI32});
  expect(experts.shape[0] == x.shape[0], "k = {}, got {}", experts.shape[0], x.shape[0]);
  expect.axis(0, 3, 1, "length");
  expect.shape(2, {ids.shape[0], x.shape[2], 1, 1});
  expect(x.shape[1] == 1 || x.shape[1] == ids.shape[0], "axis 1 of x to be 1 or {}, got {}", ids.shape[0], x.shape[1]);
  expect.axis(1, 3, 1, "length");
  expect.select(params_of<SelectParams>(node), 2);
  node.dtype = DType::kF32;
  node.shape = {experts.shape[1], ids.shape[0], ids.shape[1], 1};
}

Tensor* mul_mat_id(Graph& g, Tensor* experts, Tensor* x, Tensor* ids, SelectParams params, std::string name) {
  return g.add_node(Op::kMulMatId, std::move(params), {experts, x, ids}, std::move(name));
}

void infer::get_rows(Tensor& node) {
  const Expect expect(node, "table ids");
  const Tensor& table = *node.src[0];
  const Tensor& ids = *node.src[1];
  expect.dtype(1, {DType::kI32});
  expect.axis(1, 1, table.shape[2], "c");
  expect.axis(1, 2, table.shape[3], "d");
  expect.axis(1, 3, 1, "length");
  expect.select(params_of<SelectParams>(node), 1);
  node.dtype = table.dtype == DType::kI32 ? DType::kI32 : DType::kF32;
  node.shape = {table.shape[0], ids.shape[0], table.shape[2], table.shape[3]};
}

Tensor* get_rows(Graph& g, Tensor* table, Tensor* ids, SelectParams params, std::string name) {
  return g.add_node(Op::kGetRows, std::move(params), {table, ids}, std::move(name));
}

namespace {

/// Checks source 0 (a cache) and source 1 (values that are not part of the cache) of an op that writes into the cache.
/// Sets the node's dtype, shape, strides and offset.
void infer_write(const infer::Expect& expect, Tensor& node) {
  const Tensor& cache = *node.src[0];
  expect((cache.is_leaf() && cache.is_persistent()) || info(cache.op).alias == Alias::kWrites,
         "a cache that is persistent or the result of another set_rows or set_slice, got {}", name_of(cache.op));
  expect(cache.storage()->role != Role::kWeight,
         "a cache, got a weight, which graphs only read: add the tensor as Role::kCache");
  expect.dtype(1, {DType::kF32});
  expect(node.src[1]->storage() != cache.storage(),
         "no view of the cache as rows, because this op changes the cache: copy the view first (contiguous)");
  node.dtype = cache.dtype;
  node.shape = cache.shape;
  node.strides = cache.strides;
  node.view_offset = cache.view_offset;
}

}  // namespace

void infer::set_rows(Tensor& node) {
  const Expect expect(node, "cache rows ids");
  infer_write(expect, node);
  const Tensor& cache = *node.src[0];
  const Tensor& rows = *node.src[1];
  const Tensor& ids = *node.src[2];
  expect.dtype(2, {DType::kI32, DType::kI64});
  expect.shape(1, {cache.shape[0], rows.shape[1], cache.shape[2], cache.shape[3]});
  // Axes 1 and 2 of the ids may be broadcast.
  expect.shape(2, {rows.shape[1], ids.shape[1] == 1 ? 1 : cache.shape[2], ids.shape[2] == 1 ? 1 : cache.shape[3], 1});
  expect.select(params_of<SelectParams>(node), 1);
}

Tensor* set_rows(Graph& g, Tensor* cache, Tensor* rows, Tensor* ids, SelectParams params, std::string name) {
  return g.add_node(Op::kSetRows, std::move(params), {cache, rows, ids}, std::move(name));
}

void infer::set_slice(Tensor& node) {
  const Expect expect(node, "cache x");
  infer_write(expect, node);
  const Tensor& cache = *node.src[0];
  const Tensor& x = *node.src[1];
  const SetSliceParams& params = params_of<SetSliceParams>(node);
  const int axis = params.axis;
  expect(axis >= 0 && axis < kMaxDims, "an axis in [0, 3], got {}", axis);
  Shape wanted = cache.shape;
  wanted[axis] = x.shape[axis];
  expect.shape(1, wanted);
  expect.select(SelectParams{params.ranges}, axis);
  const int64_t block = axis == 0 ? traits(cache.dtype).block_elems : 1;
  expect(params.begin >= 0 && params.begin % block == 0 && x.shape[axis] % block == 0,
         "begin >= 0 and whole blocks of {} elements, got begin {} and length {}", block, params.begin, x.shape[axis]);
  expect(params.begin <= std::numeric_limits<int64_t>::max() - x.shape[axis], "an end below 2^63, got {} + {}",
         params.begin, x.shape[axis]);
  expect(!params.ranges.empty() || params.begin <= cache.shape[axis] - x.shape[axis], "an end in [0, {}], got {} + {}",
         cache.shape[axis], params.begin, x.shape[axis]);
}

Tensor* set_slice(Graph& g, Tensor* cache, Tensor* x, SetSliceParams params, std::string name) {
  return g.add_node(Op::kSetSlice, std::move(params), {cache, x}, std::move(name));
}

}  // namespace shoal
