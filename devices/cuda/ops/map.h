// Element-wise ops: node[i] = f(a[i]) or f(a[i], b[i]) with broadcasting. F is the type of f. F must define a device
// function operator(), and the type Value in which f computes: float or uint32_t. Operands of f32 or i32 without gaps
// are accessed 16 bytes at a time.
#pragma once

#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/view.h"
#include "devices/cuda/ops/walk.h"

namespace shoal::cuda {

template <class Value>
__device__ inline Value value_at(DType dtype, const std::byte* address) {
  if constexpr (std::is_same_v<Value, float>) {
    return float_at(dtype, address);
  } else {
    return load_as<Value>(address);
  }
}
template <class Value>
__device__ inline void store_value(DType dtype, Value value, std::byte* to) {
  if constexpr (std::is_same_v<Value, float>) {
    store_float(dtype, value, to);
  } else {
    store_as<Value>(to, value);
  }
}

template <class F, class Value, int kSources>
__device__ inline Value apply(const F& f, const Value (&values)[kSources]) {
  if constexpr (kSources == 1) {
    return f(values[0]);
  } else {
    return f(values[0], values[1]);
  }
}

/// Processes one element. The kernel checks the dtypes at run time.
template <int kSources, class F>
struct MapElement {
  using Value = typename F::Value;
  Operand to, from[kSources];
  DType dtype, dtypes[kSources];
  F f;

  __device__ void operator()(const Index& i) const {
    Value values[kSources];
#pragma unroll
    for (int s = 0; s < kSources; ++s) values[s] = value_at<Value>(dtypes[s], from[s].at(i));
    store_value(dtype, apply<F, Value, kSources>(f, values), to.at(i));
  }
};

/// Processes 16 bytes of elements of type F::Value. If a source has stride 0 along axis 0, all elements of the result
/// use the source's single element.
template <int kSources, class F>
struct MapPack {
  using Value = typename F::Value;
  Operand to, from[kSources];
  F f;

  __device__ void operator()(const Index& i) const {
    Pack<Value> packs[kSources], result;
#pragma unroll
    for (int s = 0; s < kSources; ++s) {
      const std::byte* address = from[s].at(i);
      if (from[s].strides[0] != 0) {
        packs[s] = load_pack<Value>(address);
      } else {
        const Value one = load_as<Value>(address);
#pragma unroll
        for (int j = 0; j < Pack<Value>::kCount; ++j) packs[s].values[j] = one;
      }
    }
#pragma unroll
    for (int j = 0; j < Pack<Value>::kCount; ++j) {
      Value values[kSources];
#pragma unroll
      for (int s = 0; s < kSources; ++s) values[s] = packs[s].values[j];
      result.values[j] = apply<F, Value, kSources>(f, values);
    }
    store_pack(result, to.at(i));
  }
};

/// A source of map(): its address, strides and dtype.
struct MapSource {
  Operand operand;
  DType dtype;
};

/// Computes node = f(sources). The tensors are f32, f16 or bf16 in any combination, or all i32.
template <int kSources, class F>
void map(const LaunchContext& context, const Tensor& node, const MapSource (&sources)[kSources], const F& f) {
  using Value = typename F::Value;
  constexpr DType kDType = std::is_same_v<Value, float> ? DType::kF32 : DType::kI32;
  constexpr int64_t kCount = Pack<Value>::kCount;
  Shape shape = node.shape;
  MapElement<kSources, F> element{operand_of(node), {}, node.dtype, {}, f};
  for (int s = 0; s < kSources; ++s) element.from[s] = sources[s].operand, element.dtypes[s] = sources[s].dtype;
  join_axes(shape, {&element.to, &element.from[0], &element.from[kSources - 1]});
  bool packs = node.dtype == kDType && has_packs(element.to, shape, sizeof(Value), kCount);
  for (int s = 0; s < kSources; ++s) {
    const bool one_for_all = element.from[s].strides[0] == 0;
    packs = packs && sources[s].dtype == kDType &&
            (one_for_all || has_packs(element.from[s], shape, sizeof(Value), kCount));
  }
  if (!packs) return walk(context, shape, element);
  MapPack<kSources, F> pack{element.to, {}, f};
  for (int s = 0; s < kSources; ++s) pack.from[s] = element.from[s], pack.from[s].strides[0] *= kCount;
  pack.to.strides[0] *= kCount;
  shape[0] /= kCount;
  walk(context, shape, pack);
}

/// Whether map() can write the result. The result must be a float tensor without gaps.
inline bool is_float_result(const Tensor& node) {
  return is_float(&node) && node.is_contiguous();
}
/// Whether the kernels that copy or convert rows can read the tensor. Rows of quantised tensors must have no gaps.
/// Plain dtypes may have any strides.
inline bool is_readable(const Tensor* tensor) {
  return tensor && (!traits(tensor->dtype).is_quantized || tensor->is_row_contiguous());
}

}  // namespace shoal::cuda
