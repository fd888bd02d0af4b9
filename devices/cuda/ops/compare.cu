// compare and where with broadcasting. One thread computes one element. compare converts f16 and bf16 to f32. where
// copies the bits of elements.
#include "devices/cuda/ops/copy.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

template <class Value>
struct CompareElement {
  Operand to, a, b;
  DType a_dtype, b_dtype;
  CompareKind kind;

  __device__ bool holds(Value x, Value y) const {
    switch (kind) {
      case CompareKind::kEqual:
        return x == y;
      case CompareKind::kNotEqual:
        return x != y;
      case CompareKind::kLess:
        return x < y;
      case CompareKind::kLessEqual:
        return x <= y;
      case CompareKind::kGreater:
        return x > y;
      default:
        return x >= y;
    }
  }
  __device__ void operator()(const Index& i) const {
    const bool result = holds(value_at<Value>(a_dtype, a.at(i)), value_at<Value>(b_dtype, b.at(i)));
    store_as<int32_t>(to.at(i), result ? 1 : 0);
  }
};

template <class Value>
void compare(const LaunchContext& context, const Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  CompareElement<Value> element{
      operand_of(node), broadcast_operand(a, node.shape),         broadcast_operand(b, node.shape), a.dtype,
      b.dtype,          std::get<CompareParams>(node.params).kind};
  Shape shape = node.shape;
  join_axes(shape, {&element.to, &element.a, &element.b});
  walk(context, shape, element);
}

void run_compare(const LaunchContext& context, Tensor& node) {
  node.src[0]->dtype == DType::kI32 ? compare<int32_t>(context, node) : compare<float>(context, node);
}

bool supports_compare(const Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const bool integers = a.dtype == DType::kI32 && b.dtype == DType::kI32;
  return node.dtype == DType::kI32 && node.is_contiguous() && (integers || (is_float(&a) && is_float(&b)));
}

template <class Unit>
struct SelectUnit {
  Operand to, condition, a, b;
  __device__ void operator()(const Index& i) const {
    const bool first = load_as<int32_t>(condition.at(i)) != 0;
    store_as<Unit>(to.at(i), load_as<Unit>(first ? a.at(i) : b.at(i)));
  }
};

void run_where(const LaunchContext& context, Tensor& node) {
  with_unit(static_cast<int64_t>(traits(node.dtype).block_bytes), [&](auto zero) {
    SelectUnit<decltype(zero)> unit{operand_of(node), broadcast_operand(*node.src[0], node.shape),
                                    broadcast_operand(*node.src[1], node.shape),
                                    broadcast_operand(*node.src[2], node.shape)};
    Shape shape = node.shape;
    join_axes(shape, {&unit.to, &unit.condition, &unit.a, &unit.b});
    walk(context, shape, unit);
  });
}

bool supports_where(const Tensor& node) {
  return node.is_contiguous() && node.src[0]->dtype == DType::kI32 && node.src[1]->dtype == node.dtype &&
         node.src[2]->dtype == node.dtype && (node.dtype == DType::kI32 || is_float(&node));
}

}  // namespace

const OpKernel kCompareKernel{run_compare, supports_compare, nullptr};
const OpKernel kWhereKernel{run_where, supports_where, nullptr};

}  // namespace shoal::cuda
