// add, sub, mul, div with broadcasting. Half types go through f32, i32 stays i32.
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

// Unsigned: integers wrap around instead of being undefined.
template <class T>
struct Add {
  using Value = T;
  __device__ T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Sub {
  using Value = T;
  __device__ T operator()(T a, T b) const { return a - b; }
};
template <class T>
struct Mul {
  using Value = T;
  __device__ T operator()(T a, T b) const { return a * b; }
};
template <class T>
struct Div {
  using Value = T;
  __device__ T operator()(T a, T b) const { return a / b; }
};

template <template <class> class F>
void run(const LaunchContext& context, Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const MapSource sources[] = {{broadcast_operand(a, node.shape), a.dtype},
                               {broadcast_operand(b, node.shape), b.dtype}};
  if (node.dtype == DType::kI32) {
    map_as<uint32_t, 2>(context, node, sources, F<uint32_t>{});
  } else {
    map_floats<2>(context, node, sources, F<float>{});
  }
}

void run_div(const LaunchContext& context, Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const MapSource sources[] = {{broadcast_operand(a, node.shape), a.dtype},
                               {broadcast_operand(b, node.shape), b.dtype}};
  map_floats<2>(context, node, sources, Div<float>{});
}

bool supports_float(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]) && is_float(node.src[1]);
}

bool supports_float_or_int(const Tensor& node) {
  const bool integers =
      node.dtype == DType::kI32 && node.src[0]->dtype == DType::kI32 && node.src[1]->dtype == DType::kI32;
  return supports_float(node) || (integers && node.is_contiguous());
}

}  // namespace

const OpKernel kAddKernel{run<Add>, supports_float_or_int, nullptr};
const OpKernel kSubKernel{run<Sub>, supports_float_or_int, nullptr};
const OpKernel kMulKernel{run<Mul>, supports_float_or_int, nullptr};
const OpKernel kDivKernel{run_div, supports_float, nullptr};

}  // namespace shoal::cuda
