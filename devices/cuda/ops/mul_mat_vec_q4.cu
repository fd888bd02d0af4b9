// Decode products of q4_0 and q4_1.
#include "devices/cuda/ops/mul_mat_vec_quantized.h"

namespace shoal::cuda {

const VecKernels kVecQ4_0 = quantized_kernels<DType::kQ4_0>();
const VecKernels kVecQ4_1 = quantized_kernels<DType::kQ4_1>();

}  // namespace shoal::cuda
