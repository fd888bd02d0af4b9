// attention on tensor cores by slices, with keys in bf16.
#include "devices/cuda/ops/attention_slice_kernel.h"

namespace shoal::cuda::attention {

Kernel slices_with_bf16_keys(DType keys, DType values, int d, int e) {
  return slice_kernel<false>(keys, values, d, e);
}

}  // namespace shoal::cuda::attention
