// The kernels of mul_mat_tiles that use wgmma.
#include "devices/cuda/ops/mul_mat_tiles_kernels.h"

namespace shoal::cuda {

const TileKernels kWgmmaF16 = wgmma_kernels<PlainHalf>();
const TileKernels kWgmmaBF16 = wgmma_kernels<PlainBf16>();
const TileKernels kWgmmaBF16TwoTerms = wgmma_kernels<PlainBf16, 2>();
#define SHOAL_QUANTIZED(id, ...) const TileKernels kWgmma##id = wgmma_kernels<Dequantized<tile_formats::id>>();
#include "graph/dtypes.def"

}  // namespace shoal::cuda
