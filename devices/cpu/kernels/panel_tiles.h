// Cuts a PanelArgs into tiles of columns whose accumulators stay in registers.
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

/// Puts a tile's sums into (or adds them to) its columns of the result.
template <int C>
inline void store_sums(const PanelArgs& args, int64_t column, const F32 (&sums)[C]) {
  for (int c = 0; c < C; ++c) {
    float* to = args.c[column + c] + args.c_row;
    if (args.rows == kLanes) {
      store(to, args.add ? load<F32>(to) + sums[c] : sums[c]);
      continue;
    }
    for (int64_t r = 0; r < args.rows; ++r) to[r] = args.add ? to[r] + sums[c][r] : sums[c][r];
  }
}

/// Tile::run<C>(args, column) makes the panel times C columns, each in the same way for all C.
template <class Tile, int kMost>
void panel_tiles(const PanelArgs& args) {
  int64_t column = 0;
  for (; column + kMost <= args.columns; column += kMost) Tile::template run<kMost>(args, column);
  for (; column + 2 <= args.columns; column += 2) Tile::template run<2>(args, column);
  if (column < args.columns) Tile::template run<1>(args, column);
}

}  // namespace shoal::cpu::SHOAL_ISA
