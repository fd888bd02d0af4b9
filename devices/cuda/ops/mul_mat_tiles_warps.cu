// The kernels of mul_mat_tiles that use mma.sync.
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {

const TileKernels kTilesF16 = tile_kernels<PlainHalf>();
const TileKernels kTilesBF16 = tile_kernels<PlainBf16>();
const TileKernels kTilesBF16TwoTerms = tile_kernels<PlainBf16, 2>();
#define SHOAL_QUANTIZED(id, ...) const TileKernels kTiles##id = tile_kernels<Dequantized<tile_formats::id>>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda
