// The ops unary, scale, clamp, glu, add, sub, mul and div. The last four ops broadcast. The ops compute f16 and bf16 in
// f32, and i32 in integers. All threads of a launch run the same operation, for example the same unary function.
#include "devices/cuda/kernels/activations.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

struct Activate {
  using Value = float;
  UnaryKind kind;
  __device__ float operator()(float x) const { return activate(kind, x); }
};

struct ScaleBy {
  using Value = float;
  float scale, bias;
  __device__ float operator()(float x) const { return Rounded(x) * Rounded(scale) + Rounded(bias); }
};

/// Clamps a value. NaN stays NaN.
struct ClampTo {
  using Value = float;
  float min, max;
  __device__ float operator()(float x) const {
    const float low = x < min ? min : x;
    return low > max ? max : low;
  }
};

struct Gate {
  using Value = float;
  GluKind kind;
  __device__ float operator()(float gate, float up) const { return activate_gate(kind, gate) * up; }
};

/// Computes integers as unsigned numbers. So an overflow wraps around instead of being undefined.
template <class T>
struct Arithmetic {
  using Value = T;
  Op op;
  __device__ T operator()(T a, T b) const {
    switch (op) {
      case Op::kAdd:
        return a + b;
      case Op::kSub:
        return a - b;
      case Op::kMul:
        return a * b;
      default:
        if constexpr (std::is_same_v<T, float>) return a / b;
        return 0;
    }
  }
};

template <class F>
void map_one(const LaunchContext& context, const Tensor& node, const F& f) {
  const MapSource sources[] = {{operand_of(*node.src[0]), node.src[0]->dtype}};
  map(context, node, sources, f);
}

void run_unary(const LaunchContext& context, Tensor& node) {
  map_one(context, node, Activate{std::get<UnaryParams>(node.params).kind});
}
void run_scale(const LaunchContext& context, Tensor& node) {
  const auto& params = std::get<ScaleParams>(node.params);
  map_one(context, node, ScaleBy{params.scale, params.bias});
}
void run_clamp(const LaunchContext& context, Tensor& node) {
  const auto& params = std::get<ClampParams>(node.params);
  map_one(context, node, ClampTo{params.min, params.max});
}

/// If there is only one source, each of its rows contains the gate first and then the `up` values.
void run_glu(const LaunchContext& context, Tensor& node) {
  const Tensor& gate = *node.src[0];
  const bool separate = node.src.size() > 1 && node.src[1];
  const Tensor& up = separate ? *node.src[1] : gate;
  MapSource sources[] = {{operand_of(gate), gate.dtype}, {operand_of(up), up.dtype}};
  if (!separate) sources[1].operand.data += node.shape[0] * sources[1].operand.strides[0];
  map(context, node, sources, Gate{std::get<GluParams>(node.params).kind});
}

void run_arithmetic(const LaunchContext& context, Tensor& node) {
  const Tensor &a = *node.src[0], &b = *node.src[1];
  const MapSource sources[] = {{broadcast_operand(a, node.shape), a.dtype},
                               {broadcast_operand(b, node.shape), b.dtype}};
  if (node.dtype == DType::kI32) {
    map(context, node, sources, Arithmetic<uint32_t>{node.op});
  } else {
    map(context, node, sources, Arithmetic<float>{node.op});
  }
}

bool supports_floats(const Tensor& node) {
  const auto fits = [](const Tensor* source) { return !source || is_float(source); };
  return is_float_result(node) && std::all_of(node.src.begin(), node.src.end(), fits);
}
bool supports_floats_or_ints(const Tensor& node) {
  const bool integers =
      node.dtype == DType::kI32 && node.src[0]->dtype == DType::kI32 && node.src[1]->dtype == DType::kI32;
  return supports_floats(node) || (integers && node.is_contiguous());
}

}  // namespace

const OpKernel kUnaryKernel{run_unary, supports_floats, nullptr};
const OpKernel kScaleKernel{run_scale, supports_floats, nullptr};
const OpKernel kClampKernel{run_clamp, supports_floats, nullptr};
const OpKernel kGluKernel{run_glu, supports_floats, nullptr};
const OpKernel kAddKernel{run_arithmetic, supports_floats_or_ints, nullptr};
const OpKernel kSubKernel{run_arithmetic, supports_floats_or_ints, nullptr};
const OpKernel kMulKernel{run_arithmetic, supports_floats_or_ints, nullptr};
const OpKernel kDivKernel{run_arithmetic, supports_floats, nullptr};

}  // namespace shoal::cuda
