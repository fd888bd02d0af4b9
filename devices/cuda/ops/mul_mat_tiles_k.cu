// mul_mat_tiles: formats of 256 elements.
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {

const TileKernels kTilesQ2_K = tile_kernels<Dequantized<tile_formats::Q2_K>>();
const TileKernels kTilesQ3_K = tile_kernels<Dequantized<tile_formats::Q3_K>>();
const TileKernels kTilesQ4_K = tile_kernels<Dequantized<tile_formats::Q4_K>>();
const TileKernels kTilesQ5_K = tile_kernels<Dequantized<tile_formats::Q5_K>>();
const TileKernels kTilesQ6_K = tile_kernels<Dequantized<tile_formats::Q6_K>>();

}  // namespace shoal::cuda
