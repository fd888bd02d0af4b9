// mul_mat_tiles: formats of 32 elements.
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {

const TileKernels kTilesQ4_0 = tile_kernels<Dequantized<tile_formats::Q4_0>>();
const TileKernels kTilesQ4_1 = tile_kernels<Dequantized<tile_formats::Q4_1>>();
const TileKernels kTilesQ5_0 = tile_kernels<Dequantized<tile_formats::Q5_0>>();
const TileKernels kTilesQ5_1 = tile_kernels<Dequantized<tile_formats::Q5_1>>();
const TileKernels kTilesQ8_0 = tile_kernels<Dequantized<tile_formats::Q8_0>>();

}  // namespace shoal::cuda
