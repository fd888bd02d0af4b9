// Decode products of q8_0.
#include "devices/cuda/ops/mul_mat_vec_quantized.h"

namespace shoal::cuda {

const VecKernels kVecQ8_0 = quantized_kernels<DType::kQ8_0>();

}  // namespace shoal::cuda
