// Element-wise ops: see graph/ops/ops.h. The fused form of glu has no second source.
#include "graph/ops/infer.h"
#include "graph/ops/ops.h"

namespace shoal {

void infer::binary(Tensor& node) {
  const Expect expect(node, "a b");
  const Tensor& a = *node.src[0];
  const Tensor& b = *node.src[1];
  if (a.dtype == DType::kI32 && node.op != Op::kDiv) {
    expect.dtype(1, {DType::kI32});
  } else {
    expect.is_float(0);
    expect.is_float(1);
  }
  node.dtype = a.dtype;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const int64_t from_a = a.shape[axis];
    const int64_t from_b = b.shape[axis];
    expect(from_a == from_b || from_a == 1 || from_b == 1, "equal lengths or a length of 1 on axis {}, got {} and {}",
           axis, from_a, from_b);
    node.shape[axis] = from_a == 1 ? from_b : from_a;
  }
}

Tensor* add(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kAdd, {}, {a, b}, std::move(name));
}
Tensor* sub(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kSub, {}, {a, b}, std::move(name));
}
Tensor* mul(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kMul, {}, {a, b}, std::move(name));
}
Tensor* div(Graph& g, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kDiv, {}, {a, b}, std::move(name));
}

void infer::compare(Tensor& node) {
  binary(node);
  node.dtype = DType::kI32;
}

Tensor* compare(Graph& g, Tensor* a, Tensor* b, CompareKind kind, std::string name) {
  return g.add_node(Op::kCompare, CompareParams{kind}, {a, b}, std::move(name));
}

void infer::where(Tensor& node) {
  const Expect expect(node, "condition a b");
  const Tensor& a = *node.src[1];
  expect.dtype(0, {DType::kI32});
  if (a.dtype != DType::kI32) expect.is_float(1);
  expect.dtype(2, {a.dtype});
  node.dtype = a.dtype;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    int64_t length = 1;
    for (const Tensor* source : node.src) length = source->shape[axis] == 1 ? length : source->shape[axis];
    for (const Tensor* source : node.src) {
      expect(source->shape[axis] == length || source->shape[axis] == 1, "length {} or 1 on axis {}, got {}", length,
             axis, source->shape[axis]);
    }
    node.shape[axis] = length;
  }
}

Tensor* where(Graph& g, Tensor* condition, Tensor* a, Tensor* b, std::string name) {
  return g.add_node(Op::kWhere, {}, {condition, a, b}, std::move(name));
}

void infer::scale(Tensor& node) {
  Expect(node, "x").is_float(0);
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

Tensor* scale(Graph& g, Tensor* x, ScaleParams params, std::string name) {
  return g.add_node(Op::kScale, params, {x}, std::move(name));
}

void infer::unary(Tensor& node) {
  Expect(node, "x").is_float(0);
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

Tensor* unary(Graph& g, Tensor* x, UnaryKind kind, std::string name) {
  return g.add_node(Op::kUnary, UnaryParams{kind}, {x}, std::move(name));
}

void infer::clamp(Tensor& node) {
  const Expect expect(node, "x");
  const ClampParams& params = params_of<ClampParams>(node);
  expect.is_float(0);
  expect(params.min <= params.max, "min <= max, got {} and {}", params.min, params.max);
  node.dtype = node.src[0]->dtype;
  node.shape = node.src[0]->shape;
}

Tensor* clamp(Graph& g, Tensor* x, ClampParams params, std::string name) {
  return g.add_node(Op::kClamp, params, {x}, std::move(name));
}

void infer::glu(Tensor& node) {
  const Expect expect(node, "gate up");
  const Tensor& gate = *node.src[0];
  expect.is_float(0);
  node.dtype = gate.dtype;
  node.shape = gate.shape;
  if (node.src[1]) {
    expect.dtype(1, {gate.dtype});
    expect.shape(1, gate.shape);
  } else {
    expect(gate.shape[0] % 2 == 0, "an even length of axis 0 of the fused gate/up tensor, got {}", gate.shape[0]);
    node.shape[0] /= 2;
  }
}

Tensor* glu(Graph& g, Tensor* gate, Tensor* up, GluKind kind, std::string name) {
  return g.add_node(Op::kGlu, GluParams{kind}, {gate, up}, std::move(name));
}
Tensor* glu_fused(Graph& g, Tensor* gate_up, GluKind kind, std::string name) {
  return g.add_node(Op::kGlu, GluParams{kind}, {gate_up}, std::move(name));
}

}  // namespace shoal
