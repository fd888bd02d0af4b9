// Not written yet.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {

const OpKernel kRmsNormKernel{};
const OpKernel kLayerNormKernel{};

}  // namespace shoal::cuda
