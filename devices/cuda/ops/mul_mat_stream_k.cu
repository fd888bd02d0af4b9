// Products with one column, of formats of 256 elements.
#include "devices/cuda/ops/mul_mat_stream_experts.h"

namespace shoal::cuda {

#define SHOAL_QUANTIZED_256(id, ...) const StreamKernel kStream##id = stream_blocks_kernel<DType::k##id>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda
