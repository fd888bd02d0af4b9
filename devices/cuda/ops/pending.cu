// Ops whose kernels are not written yet.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {

const OpKernel kExternalKernel{};

}  // namespace shoal::cuda
