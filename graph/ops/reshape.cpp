// reshape: see graph/ops/ops.h. An entry of -1 is replaced in the node's parameters by what it stands for.
#include <algorithm>

#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

void resolve_inferred_axis(const infer::Expect& expect, const Tensor& x, Shape& shape) {
  const auto inferred = std::find(shape.begin(), shape.end(), -1);
  if (inferred == shape.end()) return;
  Shape known = shape;
  known[inferred - shape.begin()] = 1;
  expect(infer::addressable(DType::kI32, known), "axes >= 0 and at most one of -1, got {}", fmt::join(shape, ", "));
  const int64_t elements = known[0] * known[1] * known[2] * known[3];
  expect(elements > 0, "no axis of length 0 beside the inferred one, got {}", fmt::join(shape, ", "));
  expect(x.elements() % elements == 0, "a multiple of {} elements for {}, got {}", elements, fmt::join(shape, ", "),
         x.elements());
  *inferred = x.elements() / elements;
}

}  // namespace

void infer::reshape(Tensor& node) {
  const Expect expect(node, "x");
  const Tensor& x = *node.src[0];
  Shape& shape = std::get<ReshapeParams>(node.params).shape;
  expect(x.is_contiguous(), "a contiguous tensor, got a view with gaps or permuted axes: use contiguous() first");
  resolve_inferred_axis(expect, x, shape);
  expect.valid_result(x.dtype, shape);
  node.dtype = x.dtype;
  node.shape = shape;
  expect(node.elements() == x.elements(), "{} elements, got {} of {}", x.elements(), node.elements(),
         to_string(node.shape));
  node.strides = contiguous_strides(node.dtype, node.shape);
  node.view_offset = x.view_offset;
}

Tensor* reshape(Graph& g, Tensor* x, Shape shape, std::string name) {
  return g.add_node(Op::kReshape, ReshapeParams{shape}, {x}, std::move(name));
}

}  // namespace shoal
