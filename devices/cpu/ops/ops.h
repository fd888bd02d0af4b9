// The kernels of a CPU device, one per op, each defined in the file of its op. devices/cpu/ops/table.cpp puts them into
// a table; all other code uses kernel_for(). Files here are compiled for the baseline instruction set. Hot inner loops
// come from kernels() (devices/cpu/kernels), which selects the best instruction set at run time.
//
// Rule for all kernels: the computation of a result element does not depend on the number of threads or on the device's
// share of rows or heads. So the results have the same bits for every split.
#pragma once

#include "devices/cpu/op_kernel.h"

namespace shoal::cpu {

#define SHOAL_OP(id, ...) extern const OpKernel k##id##Kernel;
#define SHOAL_OP_WITHOUT_KERNEL(...)
#include "graph/ops.def"

}  // namespace shoal::cpu
