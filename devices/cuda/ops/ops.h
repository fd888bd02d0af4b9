// The kernels of all ops on CUDA devices, one file each in this folder; joined in table.cpp.
#pragma once

#include "devices/cuda/op_kernel.h"

namespace shoal::cuda {

extern const OpKernel kGetRowsKernel, kSetRowsKernel;
extern const OpKernel kMulMatKernel, kMulMatIdKernel;
extern const OpKernel kAddKernel, kSubKernel, kMulKernel, kDivKernel;
extern const OpKernel kScaleKernel, kUnaryKernel, kClampKernel, kGluKernel;
extern const OpKernel kRmsNormKernel, kLayerNormKernel, kSoftMaxKernel, kRopeKernel, kSumRowsKernel;
extern const OpKernel kArgmaxKernel, kTopKKernel, kArgsortKernel;
extern const OpKernel kAttentionKernel;
extern const OpKernel kCastKernel, kContiguousKernel, kConcatKernel, kRepeatKernel, kFillKernel;

}  // namespace shoal::cuda
