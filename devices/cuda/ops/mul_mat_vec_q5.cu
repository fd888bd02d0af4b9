// Decode products of q5_0 and q5_1.
#include "devices/cuda/ops/mul_mat_vec_quantized.h"

namespace shoal::cuda {

const VecKernels kVecQ5_0 = quantized_kernels<DType::kQ5_0>();
const VecKernels kVecQ5_1 = quantized_kernels<DType::kQ5_1>();

}  // namespace shoal::cuda
