// Calls a generic function with the C++ types of an Element:
//   with_types(element, [&]<class T, class W>(Types<T, W>) { ... });
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

constexpr int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace shoal::collectives::p2p
