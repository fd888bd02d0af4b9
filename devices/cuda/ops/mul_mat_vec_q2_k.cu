// Decode products of q2_K, q3_K and q6_K.
#include "devices/cuda/ops/mul_mat_vec_quantized.h"

namespace shoal::cuda {

const VecKernels kVecQ2_K = quantized_kernels<DType::kQ2_K>();
const VecKernels kVecQ3_K = quantized_kernels<DType::kQ3_K>();
const VecKernels kVecQ6_K = quantized_kernels<DType::kQ6_K>();

}  // namespace shoal::cuda
