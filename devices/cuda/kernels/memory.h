// Access to memory through a type that differs from the stored type: 16 bytes of floats as a uint4, packed bytes as a
// word, or the scale at the start of a block. Compilers may assume that ordinary pointers to different types do not
// alias. Accesses through these functions may alias any object. Addresses must be aligned for the type.
#pragma once

#include "devices/cuda/kernels/platform.h"

namespace shoal::cuda {

template <class T>
struct __attribute__((may_alias)) AnyMemory {
  T value;
};

template <class T>
__device__ __forceinline__ T load_as(const void* from) {
  return static_cast<const AnyMemory<T>*>(from)->value;
}
template <class T>
__device__ __forceinline__ void store_as(void* to, const T& value) {
  static_cast<AnyMemory<T>*>(to)->value = value;
}

}  // namespace shoal::cuda
