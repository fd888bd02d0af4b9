// slice: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::slice(Tensor& node) {
  const Expect expect(node, "x");
  const Tensor& x = *node.src[0];
  const auto [axis, begin, length] = params_of<SliceParams>(node);
  expect(axis >= 0 && axis < kMaxDims, "an axis in [0, 3], got {}", axis);
  expect(begin >= 0 && length >= 0 && begin <= x.shape[axis] && length <= x.shape[axis] - begin,
         "begin and length inside the {} of axis {}, got {} and {}", x.shape[axis], axis, begin, length);
  const int64_t block = axis == 0 ? traits(x.dtype).block_elems : 1;
  expect(begin % block == 0 && length % block == 0, "begin and length in whole blocks of {} elements, got {} and {}",
         block, begin, length);
  node.dtype = x.dtype;
  node.shape = x.shape;
  node.shape[axis] = length;
  node.strides = x.strides;
  node.view_offset = x.view_offset + static_cast<size_t>(begin / block) * x.strides[axis];
}

Tensor* slice(Graph& g, Tensor* x, SliceParams params, std::string name) {
  return g.add_node(Op::kSlice, params, {x}, std::move(name));
}

}  // namespace shoal
