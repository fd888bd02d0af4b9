// The kernels of mul_mat_tiles. Each dtype of `a` except f32 has two objects of TileKernels. One object contains the
// kernels that use mma.sync (mul_mat_tiles_warps.cu). The other object contains the kernels that use wgmma, for compute
// capability 9.0 (mul_mat_tiles_wgmma.cu). bf16 has two more objects, for a `b` with two terms per element.
#pragma once

#include <span>

#include "devices/cuda/kernels/tile_product.h"
#include "devices/cuda/kernels/wgmma_product.h"
#include "devices/cuda/op_kernel.h"

namespace shoal::cuda {

struct TileKernel {
  void (*kernel)(TileProduct);
  int columns;  ///< number of columns per tile
  int threads;
  size_t shared_bytes;
  int step_cycles;  ///< expected cycles for a step of a tile (docs/cuda_kernels.md)
};

struct TileKernels {
  std::span<const TileKernel> kernels;  ///< ordered from wide tiles to narrow tiles; empty if there are no kernels
  bool brain = false;                   ///< whether b is bf16 instead of f16
  int terms = 1;                        ///< number of 16-bit terms per element of b
  int steps_per_group = 1;              ///< if k is divided, the number of steps in each part of k is a multiple of
                                        ///< this number
};

template <class Rows, int kTerms, int kColumns>
constexpr TileKernel tile_kernel() {
  return {tile_product<Rows, kColumns, kTerms>, kColumns, kTileThreads, TileShape<Rows, kColumns, kTerms>::kSharedBytes,
          7 * (kColumns * kTerms + 48)};
}
template <class Rows, int kTerms, int kColumns>
constexpr TileKernel wgmma_kernel() {
  return {wgmma_product<Rows, kColumns, kTerms>, kColumns, kWgmmaThreads,
          WgmmaShape<Rows, kColumns, kTerms>::kSharedBytes, 7 * kColumns * kTerms / 2 + 350};
}

/// Number of columns of a narrow tile. A narrow tile must fit in 99 KB of shared memory, which sm_86, sm_89 and sm_120
/// have.
template <class Rows, int kTerms>
inline constexpr int kNarrowColumns = TileShape<Rows, 64, kTerms>::kSharedBytes <= 99 * 1024 ? 64 : 32;
template <class Rows, int kTerms>
inline constexpr TileKernel kWarpTiles[] = {tile_kernel<Rows, kTerms, 128>(),
                                            tile_kernel<Rows, kTerms, kNarrowColumns<Rows, kTerms>>()};
template <class Rows, int kTerms>
inline constexpr TileKernel kWgmmaTiles[] = {wgmma_kernel<Rows, 1, 256>(), wgmma_kernel<Rows, 1, 128>()};
/// 256 columns with two terms each do not fit in shared memory.
template <class Rows>
inline constexpr TileKernel kWgmmaTiles<Rows, 2>[] = {wgmma_kernel<Rows, 2, 128>()};

template <class Rows, int kTerms>
constexpr TileKernels tile_kernels_of(std::span<const TileKernel> kernels) {
  int steps = 1;
  if constexpr (!Rows::kPlain) steps = Rows::kUnits / 2;
  return {kernels, Rows::kBf16, kTerms, steps};
}
template <class Rows, int kTerms = 1>
constexpr TileKernels tile_kernels() {
  return tile_kernels_of<Rows, kTerms>(kWarpTiles<Rows, kTerms>);
}
template <class Rows, int kTerms = 1>
constexpr TileKernels wgmma_kernels() {
  return tile_kernels_of<Rows, kTerms>(kWgmmaTiles<Rows, kTerms>);
}

extern const TileKernels kTilesF16, kTilesBF16, kTilesBF16TwoTerms;
extern const TileKernels kWgmmaF16, kWgmmaBF16, kWgmmaBF16TwoTerms;
#define SHOAL_QUANTIZED(id, ...) extern const TileKernels kTiles##id, kWgmma##id;
#include "graph/dtypes.def"

/// Runs the f32 kernel. The kernel supports float operands with any strides, and k == 0.
void mul_mat_float_tiles(const LaunchContext& context, Tensor& node);

}  // namespace shoal::cuda
