// Memory as a type other than the one it was written as: 16 bytes of floats as a uint4, a word of packed bytes, the
// scale at the start of a block. Compilers may take it that pointers to different types never meet; what is read and
// written through here may meet anything. Addresses have the alignment of the type.
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
