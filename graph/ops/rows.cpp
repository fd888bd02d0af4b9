// Ops along rows: see graph/ops/ops.h.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

void reduce_axis_0(Tensor& node, DType dtype) {
  infer::Expect(node, "x").is_float(0);
  const Shape& shape = node.src[0]->shape;
  node.dtype = dtype;
  node.shape = {1, shape[1], shape[2], shape[3]};
}

}  // namespace

void infer::norm(Tensor& node) {
  const Expect expect(node, "x");
  const float eps = params_of<NormParams>(node).eps;
  expect.is_float(0);
  expect(eps >= 0.0f, "eps >= 0, got {}", eps);
  node.dtype = params_of<NormParams>(node).dtype;
  expect(traits(node.dtype).is_float, "f32, f16 or bf16 as dtype of the result, got {}", name_of(node.dtype));
  node.shape = node.src[0]->shape;
}

Tensor* rms_norm(Graph& g, Tensor* x, NormParams params, std::string name) {
  return g.add_node(Op::kRmsNorm, params, {x}, std::move(name));
}
Tensor* layer_norm(Graph& g, Tensor* x, NormParams params, std::string name) {
  return g.add_node(Op::kLayerNorm, params, {x}, std::move(name));
}

void infer::soft_max(Tensor& node) {
  const Expect expect(node, "x mask sinks");
  const Tensor& x = *node.src[0];
  expect.is_float(0);
  expect.dtype(1, {DType::kF32, DType::kF16});
  expect.dtype(2, {DType::kF32});
  if (const Tensor* mask = node.src[1]) {
    // Axes 2 and 3 of the mask may be broadcast.
    Shape wanted = x.shape;
    for (const int axis : {2, 3}) {
      if (mask->shape[axis] == 1) wanted[axis] = 1;
    }
    expect.shape(1, wanted);
  }
  expect.shape(2, {x.shape[2], 1, 1, 1});
  node.dtype = DType::kF32;
  node.shape = x.shape;
}

Tensor* soft_max(Graph& g, Tensor* x, Tensor* mask, Tensor* sinks, SoftMaxParams params, std::string name) {
  return g.add_node(Op::kSoftMax, params, {x, mask, sinks}, std::move(name));
}

void infer::rope(Tensor& node) {
  const Expect expect(node, "x positions freq_factors");
  const Tensor& x = *node.src[0];
  const RopeParams& params = params_of<RopeParams>(node);
  expect.is_float(0);
  expect.dtype(1, {DType::kI32});
  expect.dtype(2, {DType::kF32});
  expect(params.dims >= 0 && params.dims % 2 == 0 && params.dims <= x.shape[0], "even dims in [0, {}], got {}",
         x.shape[0], params.dims);
  expect(params.offset >= 0 && params.offset <= x.shape[0] - params.dims, "an offset in [0, {}], got {}",
         x.shape[0] - params.dims, params.offset);
  expect(params.base > 0.0f, "base > 0, got {}", params.base);
  expect.shape(1, {x.shape[2], 1, 1, 1});
  expect.shape(2, {params.dims / 2, 1, 1, 1});
  node.dtype = DType::kF32;
  node.shape = x.shape;
}

Tensor* rope(Graph& g, Tensor* x, Tensor* positions, Tensor* freq_factors, RopeParams params, std::string name) {
  return g.add_node(Op::kRope, params, {x, positions, freq_factors}, std::move(name));
}

void infer::sum_rows(Tensor& node) {
  reduce_axis_0(node, DType::kF32);
}
void infer::argmax(Tensor& node) {
  reduce_axis_0(node, DType::kI32);
}
void infer::cumsum(Tensor& node) {
  const DType dtype = node.src[0]->dtype;
  if (dtype != DType::kI32) Expect(node, "x").is_float(0);
  node.dtype = dtype == DType::kI32 ? DType::kI32 : DType::kF32;
  node.shape = node.src[0]->shape;
}

Tensor* cumsum(Graph& g, Tensor* x, std::string name) {
  return g.add_node(Op::kCumsum, {}, {x}, std::move(name));
}

Tensor* sum_rows(Graph& g, Tensor* x, std::string name) {
  return g.add_node(Op::kSumRows, {}, {x}, std::move(name));
}
Tensor* argmax(Graph& g, Tensor* x, std::string name) {
  return g.add_node(Op::kArgmax, {}, {x}, std::move(name));
}

void infer::top_k(Tensor& node) {
  const Expect expect(node, "x");
  const Shape& shape = node.src[0]->shape;
  const int64_t k = params_of<TopKParams>(node).k;
  expect.is_float(0);
  expect(k >= 0 && k <= shape[0], "k in [0, {}], got {}", shape[0], k);
  node.dtype = DType::kI32;
  node.shape = {k, shape[1], shape[2], shape[3]};
}

Tensor* top_k(Graph& g, Tensor* x, int64_t k, std::string name) {
  return g.add_node(Op::kTopK, TopKParams{k}, {x}, std::move(name));
}

}  // namespace shoal
