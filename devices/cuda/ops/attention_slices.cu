// attention on tensor cores for heads whose elements are processed in slices.
#include "devices/cuda/kernels/attention_slices.h"

#include "devices/cuda/ops/attention.h"

namespace shoal::cuda::attention {

Kernel slices(DType keys, DType values, int d, int e) {
  const bool f16_keys = keys != DType::kBF16, f16_values = values == DType::kF16;
  const auto kernel = f16_keys ? (f16_values ? attention_slices<true, true> : attention_slices<true, false>)
                               : (f16_values ? attention_slices<false, true> : attention_slices<false, false>);
  const auto bytes = static_cast<size_t>(SliceLayout(keys, values, d, slice_width(e)).bytes());
  return {kernel, bytes, kSliceRows, 1, kSliceThreads, slice_parts(e)};
}

}  // namespace shoal::cuda::attention
