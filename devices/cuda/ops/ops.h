// The kernels of all ops on CUDA devices. This folder has one file per op or family of ops; table.cpp lists the
// kernels.
#pragma once

#include "devices/cuda/op_kernel.h"

namespace shoal::cuda {

#define SHOAL_OP(id, ...) extern const OpKernel k##id##Kernel;
#define SHOAL_OP_WITHOUT_KERNEL(...)
#include "graph/ops.def"

}  // namespace shoal::cuda
