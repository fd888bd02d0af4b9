// Decode products of the coded formats.
#include "devices/cuda/ops/mul_mat_vec_quantized.h"

namespace shoal::cuda {

#define SHOAL_QUANTIZED_CODED(id, ...) const VecKernels kVec##id = quantized_kernels<DType::k##id>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda
