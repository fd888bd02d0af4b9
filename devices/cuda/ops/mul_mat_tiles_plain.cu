// mul_mat_tiles: f16 and bf16 rows.
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {

const TileKernels kTilesF16 = tile_kernels<PlainHalf>();
const TileKernels kTilesBF16 = tile_kernels<PlainBrain>();
const TileKernels kTilesBF16TwoTerms = tile_kernels<PlainBrain, 2>();

}  // namespace shoal::cuda
