// The kernels behind mul_mat_tiles: TileKernels for each way that rows of a are stored, one by instructions of warps
// (mul_mat_tiles_warps.cu), and one by those of warpgroups, for compute capability 9.0 (mul_mat_tiles_wgmma.cu).
#pragma once

#include <span>

#include "devices/cuda/kernels/tile_product.h"
#include "devices/cuda/kernels/wgmma_product.h"
#include "devices/cuda/op_kernel.h"

namespace shoal::cuda {

struct TileKernel {
  void (*kernel)(TileProduct);
  int columns;  ///< of a tile
  int threads;
  size_t shared_bytes;
  int step_cycles;  ///< that a step of a tile is expected to take, see docs/cuda_tiles.md
};

struct TileKernels {
  std::span<const TileKernel> kernels;  ///< wide tiles first; empty: none
  bool brain = false;                   ///< b as bf16, else as halves
  int terms = 1;                        ///< of b
  int steps_per_group = 1;              ///< a part of k must be whole groups
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

/// Fits into the 99 KB of compute capabilities 8.6, 8.9 and 12.0.
template <class Rows, int kTerms>
inline constexpr int kNarrowColumns = TileShape<Rows, 64, kTerms>::kSharedBytes <= 99 * 1024 ? 64 : 32;
template <class Rows, int kTerms>
inline constexpr TileKernel kWarpTiles[] = {tile_kernel<Rows, kTerms, 128>(),
                                            tile_kernel<Rows, kTerms, kNarrowColumns<Rows, kTerms>>()};
template <class Rows, int kTerms>
inline constexpr TileKernel kWgmmaTiles[] = {wgmma_kernel<Rows, 1, 256>(), wgmma_kernel<Rows, 1, 128>()};
/// Two terms of 256 columns have no room.
template <class Rows>
inline constexpr TileKernel kWgmmaTiles<Rows, 2>[] = {wgmma_kernel<Rows, 2, 128>()};

template <class Rows, int kTerms>
constexpr TileKernels tile_kernels_of(std::span<const TileKernel> kernels) {
  int steps = 1;
  if constexpr (!Rows::kPlain) steps = Rows::kUnits / 2;
  return {kernels, Rows::kBrain, kTerms, steps};
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

/// The f32 kernel: any strides of float operands, k == 0 too.
void mul_mat_float_tiles(const LaunchContext& context, Tensor& node);

}  // namespace shoal::cuda
