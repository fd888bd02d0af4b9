// Products with one column, of f32, f16 and bf16.
#include "devices/cuda/ops/mul_mat_stream_experts.h"

namespace shoal::cuda {

const StreamKernel kStreamF32 = stream_floats_kernel<float>();
const StreamKernel kStreamF16 = stream_floats_kernel<__half>();
const StreamKernel kStreamBF16 = stream_floats_kernel<__nv_bfloat16>();

}  // namespace shoal::cuda
