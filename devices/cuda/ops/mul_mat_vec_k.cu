// Decode products of formats of 256 elements.
#include "devices/cuda/ops/mul_mat_vec_quantized.h"

namespace shoal::cuda {

#define SHOAL_QUANTIZED_256(id, ...) const VecKernels kVec##id = quantized_kernels<DType::k##id>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda
