// The kernels behind mul_mat_tiles, compiled in several files: one TileKernels for each way that rows of a are stored.
#pragma once

#include "devices/cuda/kernels/tile_product.h"
#include "devices/cuda/op_kernel.h"

namespace shoal::cuda {

struct TileKernel {
  void (*kernel)(TileProduct);
  int columns;  ///< of a tile
  size_t shared_bytes;
};

/// For tiles of 128, 64 and 32 columns.
struct TileKernels {
  TileKernel kernels[3];
  bool brain;           ///< b as bf16, else as halves
  int terms;            ///< of b
  int steps_per_group;  ///< a part of k must be whole groups
};

template <class Rows, int kTerms, int kColumns>
constexpr TileKernel tile_kernel() {
  return {tile_product<Rows, kColumns, kTerms>, kColumns, TileShape<Rows, kColumns, kTerms>::kSharedBytes};
}

template <class Rows, int kTerms = 1>
constexpr TileKernels tile_kernels() {
  int steps = 1;
  if constexpr (!Rows::kPlain) steps = Rows::kUnits / 2;
  return {{tile_kernel<Rows, kTerms, 128>(), tile_kernel<Rows, kTerms, 64>(), tile_kernel<Rows, kTerms, 32>()},
          Rows::kBrain,
          kTerms,
          steps};
}

extern const TileKernels kTilesF16, kTilesBF16, kTilesBF16TwoTerms;
#define SHOAL_QUANTIZED(id, ...) extern const TileKernels kTiles##id;
#include "graph/dtypes.def"

/// The f32 kernel: any strides of float operands, k == 0 too.
void mul_mat_float_tiles(const LaunchContext& context, Tensor& node);

}  // namespace shoal::cuda
