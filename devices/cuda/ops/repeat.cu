// Not written yet.
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {

const OpKernel kRepeatKernel{};
const OpKernel kFillKernel{};

}  // namespace shoal::cuda
