// Not written yet.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {

const OpKernel kScaleKernel{};

}  // namespace shoal::cuda
