// attention on tensor cores by slices, with keys in f16, f32 or q8_0.
#include "devices/cuda/ops/attention_slice_kernel.h"

namespace shoal::cuda::attention {

Kernel slices_with_f16_keys(DType keys, DType values, int d, int e) {
  return slice_kernel<true>(keys, values, d, e);
}

}  // namespace shoal::cuda::attention
