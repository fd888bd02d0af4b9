// Products with one column, of formats of 32 elements.
#include "devices/cuda/ops/mul_mat_stream_experts.h"

namespace shoal::cuda {

#define SHOAL_QUANTIZED_32(id, ...) const StreamKernel kStream##id = stream_blocks_kernel<DType::k##id>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda
