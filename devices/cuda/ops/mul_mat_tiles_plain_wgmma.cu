// mul_mat_tiles: f16 and bf16 rows, by warpgroups.
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {

const TileKernels kWgmmaF16 = wgmma_kernels<PlainHalf>();
const TileKernels kWgmmaBF16 = wgmma_kernels<PlainBrain>();
const TileKernels kWgmmaBF16TwoTerms = wgmma_kernels<PlainBrain, 2>();

}  // namespace shoal::cuda
