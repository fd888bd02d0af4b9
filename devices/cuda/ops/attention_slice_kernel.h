// Chooses an instance of attention_slices; for the files that hold them.
#pragma once

#include "devices/cuda/kernels/attention_slices.h"
#include "devices/cuda/ops/attention.h"

namespace shoal::cuda::attention {

template <bool kF16Keys, bool kF16Values>
Kernel slice_kernel(DType keys, DType values, int d, int e) {
  const auto bytes = static_cast<size_t>(SliceLayout(keys, values, d, slice_width(e)).bytes());
  return {attention_slices<kF16Keys, kF16Values>, bytes, kSliceRows, 1, kSliceThreads, slice_parts(e)};
}

template <bool kF16Keys>
Kernel slice_kernel(DType keys, DType values, int d, int e) {
  if (values == DType::kF16) return slice_kernel<kF16Keys, true>(keys, values, d, e);
  return slice_kernel<kF16Keys, false>(keys, values, d, e);
}

}  // namespace shoal::cuda::attention
