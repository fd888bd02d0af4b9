// The kernels of a CPU device, one per op, each defined in the file of its op. devices/cpu/ops/table.cpp joins
// them; everything else goes through kernel_for(). Files here are compiled for the baseline instruction set;
// hot inner loops come from kernels() (devices/cpu/kernels), which picks the best set at run time.
//
// Rule for all of them: a result element is computed the same way whatever the number of threads and whatever
// part of the rows or heads a device has, so that results are the same bits for every split.
#pragma once

#include "devices/cpu/op_kernel.h"

namespace shoal::cpu {

#define SHOAL_OP(id, ...) extern const OpKernel k##id##Kernel;
#define SHOAL_OP_WITHOUT_KERNEL(...)
#include "graph/ops.def"

}  // namespace shoal::cpu
