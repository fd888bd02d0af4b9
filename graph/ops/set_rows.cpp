// set_rows: see graph/ops/ops.h. The node is an alias of the cache, so that what comes after it in the graph and
// reads it sees the rows written.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::set_rows(Tensor& node) {
  const Expect expect(node, "cache rows ids");
  const Tensor& cache = *node.src[0];
  const Tensor& rows = *node.src[1];
  expect((cache.is_leaf() && cache.is_persistent()) || cache.op == Op::kSetRows,
         "a cache that is persistent or the result of another set_rows, got {}", name_of(cache.op));
  expect(cache.storage()->role != Role::kWeight,
         "a cache, got a weight, which graphs only read: add it as Role::kCache");
  expect.dtype(1, {DType::kF32});
  expect.dtype(2, {DType::kI32, DType::kI64});
  expect(rows.storage() != cache.storage(),
         "rows from elsewhere, got a part of the cache, which changes while it is read: copy it first (contiguous)");
  expect.shape(1, {cache.shape[0], rows.shape[1], cache.shape[2], cache.shape[3]});
  expect.shape(2, {rows.shape[1], 1, 1, 1});
  expect.select(params_of<SelectParams>(node), 1);
  node.dtype = cache.dtype;
  node.shape = cache.shape;
  node.strides = cache.strides;
  node.view_offset = cache.view_offset;
}

Tensor* set_rows(Graph& g, Tensor* cache, Tensor* rows, Tensor* ids, SelectParams params, std::string name) {
  return g.add_node(Op::kSetRows, std::move(params), {cache, rows, ids}, std::move(name));
}

}  // namespace shoal
