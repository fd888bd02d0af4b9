// mul_mat_tiles: the coded formats.
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {

#define SHOAL_QUANTIZED_CODED(id, ...) const TileKernels kTiles##id = tile_kernels<Dequantized<tile_formats::id>>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda
