// From an Element to the types of a kernel: with_types(element, [&]<class T, class W>(Types<T, W>) { ... }).
#pragma once

#include "collectives/p2p/kernels.h"
#include "devices/cuda/kernels/platform.h"

namespace shoal::collectives::p2p {

template <class T, class W>
struct Types {};

template <class Function>
void with_types(Element element, const Function& function) {
  switch (element) {
    case Element::kF32:
      return function(Types<float, float>{});
    case Element::kF32AsBF16:
      return function(Types<float, __nv_bfloat16>{});
    case Element::kF16:
      return function(Types<__half, __half>{});
    case Element::kBF16:
      return function(Types<__nv_bfloat16, __nv_bfloat16>{});
    case Element::kI32:
      return function(Types<int32_t, int32_t>{});
  }
}

/// Asks for the attributes of kernels, which is how CUDA wants them loaded in advance. Returns the first error.
template <class... Kernels>
cudaError_t load_kernels(Kernels... kernels) {
  cudaError_t status = cudaSuccess;
  for (const void* kernel : {reinterpret_cast<const void*>(kernels)...}) {
    cudaFuncAttributes attributes;
    if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, kernel);
  }
  return status;
}
/// Calls load(Types<T, W>), which loads the kernels of one Element, for each. Returns the first error.
template <class Load>
cudaError_t load_for_elements(const Load& load) {
  cudaError_t status = cudaSuccess;
  for (const Element element : {Element::kF32, Element::kF32AsBF16, Element::kF16, Element::kBF16, Element::kI32}) {
    with_types(element, [&](auto types) {
      if (status == cudaSuccess) status = load(types);
    });
  }
  return status;
}

constexpr int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace shoal::collectives::p2p
