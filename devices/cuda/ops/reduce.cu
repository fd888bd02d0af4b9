// Not written yet.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {

const OpKernel kSumRowsKernel{};
const OpKernel kArgmaxKernel{};

}  // namespace shoal::cuda
