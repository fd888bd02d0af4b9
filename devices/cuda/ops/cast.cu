// Not written yet.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {

const OpKernel kCastKernel{};
const OpKernel kContiguousKernel{};

}  // namespace shoal::cuda
