// The kernels of a CPU device, one per op, each defined in the file of its op. devices/cpu/ops/table.cpp joins
// them; everything else goes through kernel_for(). Files here are compiled for the baseline instruction set;
// hot inner loops come from kernels() (devices/cpu/kernels), which picks the best set at run time.
//
// Rule for all of them: a result element is computed the same way whatever the number of threads and whatever
// part of the rows or heads a device has, so that results are the same bits for every split.
#pragma once

#include "devices/cpu/op_kernel.h"

namespace shoal::cpu {

extern const OpKernel kGetRowsKernel, kSetRowsKernel;
extern const OpKernel kMulMatKernel, kMulMatIdKernel;
extern const OpKernel kAddKernel, kSubKernel, kMulKernel, kDivKernel;
extern const OpKernel kScaleKernel, kUnaryKernel, kClampKernel, kGluKernel;
extern const OpKernel kRmsNormKernel, kLayerNormKernel, kSoftMaxKernel, kRopeKernel;
extern const OpKernel kSumRowsKernel, kArgmaxKernel, kTopKKernel, kArgsortKernel;
extern const OpKernel kAttentionKernel;
extern const OpKernel kCastKernel, kContiguousKernel, kConcatKernel, kRepeatKernel, kFillKernel;

}  // namespace shoal::cpu
