// attention on tensor cores for values that are the first elements of the keys.
#include "devices/cuda/kernels/attention_latent.h"

#include "devices/cuda/ops/attention.h"

namespace shoal::cuda::attention {

Kernel latent(DType dtype) {
  const auto kernel = dtype == DType::kF16 ? attention_latent<true> : attention_latent<false>;
  return {kernel, LatentLayout::kBytes, kLatentRows, 1, kLatentThreads};
}

}  // namespace shoal::cuda::attention
