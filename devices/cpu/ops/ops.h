// The kernels of a CPU device. Each op has one kernel, defined in the file of the op. devices/cpu/ops/table.cpp puts
// the kernels into a table. All other code uses kernel_for(). Files of this folder are compiled for the baseline
// instruction set. Their hot inner loops are in devices/cpu/kernels. At run time, kernels() selects the loops for the
// best instruction set.
//
// Rule for all kernels: the computation of a result element does not depend on the number of threads. It also does not
// depend on the device's share of rows or heads. So the results have the same bits for every division of the work.
#pragma once

#include "devices/cpu/op_kernel.h"

namespace shoal::cpu {

#define SHOAL_OP(id, ...) extern const OpKernel k##id##Kernel;
#define SHOAL_OP_WITHOUT_KERNEL(...)
#include "graph/ops.def"

}  // namespace shoal::cpu
