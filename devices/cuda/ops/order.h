// The order of top_k and argsort as integers.
#pragma once

#include <cstring>

#include "devices/cuda/kernels/platform.h"

namespace shoal::cuda {

/// Grows with the value; zeros are equal, NaN is 0 and less than everything.
__device__ __forceinline__ uint32_t order_of(float value) {
  if (value == 0.0f) value = 0.0f;  // one zero
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if (value != value) return 0;
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

}  // namespace shoal::cuda
