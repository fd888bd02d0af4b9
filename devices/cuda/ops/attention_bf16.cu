// attention on tensor cores with keys in bf16.
#include "devices/cuda/ops/attention_tile_kernel.h"

namespace shoal::cuda::attention {

Kernel tiles_with_bf16_keys(DType values, int columns, bool few_rows) {
  return tile_kernel<KvType::kBF16>(values, columns, few_rows);
}

}  // namespace shoal::cuda::attention
