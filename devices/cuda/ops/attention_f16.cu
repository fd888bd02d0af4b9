// attention on tensor cores with keys in f16.
#include "devices/cuda/ops/attention_tile_kernel.h"

namespace shoal::cuda::attention {

Kernel tiles_with_f16_keys(DType values, int columns, bool few_rows) {
  return tile_kernel<KvType::kF16>(values, columns, few_rows);
}

}  // namespace shoal::cuda::attention
