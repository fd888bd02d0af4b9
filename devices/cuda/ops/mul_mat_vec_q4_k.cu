// Decode products of q4_K and q5_K.
#include "devices/cuda/ops/mul_mat_vec_quantized.h"

namespace shoal::cuda {

const VecKernels kVecQ4_K = quantized_kernels<DType::kQ4_K>();
const VecKernels kVecQ5_K = quantized_kernels<DType::kQ5_K>();

}  // namespace shoal::cuda
