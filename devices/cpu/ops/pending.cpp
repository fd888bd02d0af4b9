// Ops whose kernels are not written yet.
#include "devices/cpu/ops/ops.h"

namespace shoal::cpu {

const OpKernel kExternalKernel{};

}  // namespace shoal::cpu
