// Not written yet.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {

const OpKernel kTopKKernel{};
const OpKernel kArgsortKernel{};

}  // namespace shoal::cuda
