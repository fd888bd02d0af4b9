// The kernels of all ops on CUDA devices, one file for each op or family in this folder; joined in table.cpp.
#pragma once

#include "devices/cuda/op_kernel.h"

namespace shoal::cuda {

#define SHOAL_OP(id, ...) extern const OpKernel k##id##Kernel;
#define SHOAL_OP_WITHOUT_KERNEL(...)
#include "graph/ops.def"

}  // namespace shoal::cuda
