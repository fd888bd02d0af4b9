// attention on tensor cores with keys in q8_0.
#include "devices/cuda/ops/attention_tile_kernel.h"

namespace shoal::cuda::attention {

Kernel tiles_with_q8_0_keys(DType values, int columns, bool few_rows) {
  return tile_kernel<KvType::kQ8_0>(values, columns, few_rows);
}

}  // namespace shoal::cuda::attention
