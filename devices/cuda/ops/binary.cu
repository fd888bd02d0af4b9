// Not written yet.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {

const OpKernel kAddKernel{};
const OpKernel kSubKernel{};
const OpKernel kMulKernel{};
const OpKernel kDivKernel{};

}  // namespace shoal::cuda
