// Element-wise ops: node[i] = f(a[i]) or f(a[i], b[i]) with broadcasting. F has `using Value = float` or uint32_t, in
// which it computes, and operator() on the device. Operands of one dtype without gaps are taken 16 bytes at a time.
#pragma once

#include "devices/cuda/kernels/convert.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/walk.h"

namespace shoal::cuda {

template <class Value>
__device__ inline Value value_at(DType dtype, const std::byte* address) {
  if constexpr (std::is_same_v<Value, float>) {
    return float_at(dtype, address);
  } else {
    return element_at<Value>(address);
  }
}
template <class Value, class T>
__device__ inline Value value_of(T element) {
  if constexpr (std::is_same_v<Value, float>) {
    return to_float(element);
  } else {
    return element;
  }
}
template <class T, class Value>
__device__ inline T element_of(Value value) {
  if constexpr (std::is_same_v<Value, float>) {
    return from_float<T>(value);
  } else {
    return value;
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

/// One element; the sources' dtypes are looked up when it runs.
template <class T, int kSources, class F>
struct MapElement {
  using Value = typename F::Value;
  Operand to, from[kSources];
  DType dtypes[kSources];
  F f;

  __device__ void operator()(const Index& i) const {
    Value values[kSources];
#pragma unroll
    for (int s = 0; s < kSources; ++s) values[s] = value_at<Value>(dtypes[s], from[s].at(i));
    store_as<T>(to.at(i), element_of<T>(apply<F, Value, kSources>(f, values)));
  }
};

/// 16 bytes of elements of one dtype. A source whose stride along axis 0 is 0 has one element for all of them.
template <class T, int kSources, class F>
struct MapPack {
  using Value = typename F::Value;
  Operand to, from[kSources];
  F f;

  __device__ void operator()(const Index& i) const {
    Pack<T> packs[kSources], result;
#pragma unroll
    for (int s = 0; s < kSources; ++s) {
      const std::byte* address = from[s].at(i);
      if (from[s].strides[0] != 0) {
        packs[s] = load_pack<T>(address);
      } else {
        const T one = element_at<T>(address);
#pragma unroll
        for (int j = 0; j < Pack<T>::kCount; ++j) packs[s].values[j] = one;
      }
    }
#pragma unroll
    for (int j = 0; j < Pack<T>::kCount; ++j) {
      Value values[kSources];
#pragma unroll
      for (int s = 0; s < kSources; ++s) values[s] = value_of<Value>(packs[s].values[j]);
      result.values[j] = element_of<T>(apply<F, Value, kSources>(f, values));
    }
    store_pack(result, to.at(i));
  }
};

/// A source of a map: where it is and what its elements are.
struct MapSource {
  Operand operand;
  DType dtype;
};

template <class T, int kSources, class F>
void map_as(const LaunchContext& context, const Tensor& node, const MapSource (&sources)[kSources], const F& f) {
  Shape shape = node.shape;
  MapElement<T, kSources, F> element{operand_of(node), {}, {}, f};
  for (int s = 0; s < kSources; ++s) element.from[s] = sources[s].operand, element.dtypes[s] = sources[s].dtype;
  if constexpr (kSources == 1) {
    join_axes(shape, {&element.to, &element.from[0]});
  } else {
    join_axes(shape, {&element.to, &element.from[0], &element.from[1]});
  }
  constexpr int64_t kCount = Pack<T>::kCount;
  bool packs = has_packs(element.to, shape, sizeof(T), kCount);
  for (int s = 0; s < kSources; ++s) {
    const bool one_for_all = element.from[s].strides[0] == 0;
    packs = packs && sources[s].dtype == node.dtype &&
            (one_for_all || has_packs(element.from[s], shape, sizeof(T), kCount));
  }
  if (!packs) return walk(context, shape, element);
  MapPack<T, kSources, F> pack{element.to, {}, f};
  for (int s = 0; s < kSources; ++s) pack.from[s] = element.from[s], pack.from[s].strides[0] *= kCount;
  pack.to.strides[0] *= kCount;
  shape[0] /= kCount;
  walk(context, shape, pack);
}

/// A float result of float sources.
template <int kSources, class F>
void map_floats(const LaunchContext& context, const Tensor& node, const MapSource (&sources)[kSources], const F& f) {
  with_float(node.dtype, [&](auto type) {
    map_as<typename ElementOf<decltype(type)::value>::Type, kSources>(context, node, sources, f);
  });
}

/// f32, f16 or bf16, with any strides.
inline bool is_float(const Tensor* tensor) {
  return tensor && traits(tensor->dtype).is_float;
}
/// A result that a map can write: a float tensor without gaps.
inline bool is_float_result(const Tensor& node) {
  return is_float(&node) && node.is_contiguous();
}
/// Quantised rows must be without gaps; plain ones may have any strides.
inline bool is_readable(const Tensor* tensor) {
  return tensor && (!traits(tensor->dtype).is_quantized || tensor->is_row_contiguous());
}

}  // namespace shoal::cuda
