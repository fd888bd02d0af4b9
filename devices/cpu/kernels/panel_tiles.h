// Cuts a PanelArgs into tiles of panels by columns whose accumulators stay in registers.
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

/// Puts a tile's sums into (or adds them to) its columns of the result. The rows of a panel that there are begin at
/// c_row + row.
template <int C>
inline void store_sums(const PanelArgs& args, int64_t row, int64_t column, const F32 (&sums)[C]) {
  const int64_t rows = args.rows - row;
  for (int c = 0; c < C; ++c) {
    float* to = args.c[column + c] + args.c_row + row;
    if (rows >= kLanes) {
      store(to, args.add ? load<F32>(to) + sums[c] : sums[c]);
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) to[r] = args.add ? to[r] + sums[c][r] : sums[c][r];
  }
}

/// Panels that a tile has side by side: what is read of a column serves all of them.
inline constexpr int kTilePanels = kLanes == 16 ? 2 : 1;

/// Tile::run<R, C>(args, row, column) makes R panels from row `row` on times C columns, each in the same way for all R
/// and C.
template <class Tile, int C>
void panel_rows_by(const PanelArgs& args, int64_t column) {
  int64_t row = 0;
  for (; row + (kTilePanels - 1) * kLanes < args.rows; row += kTilePanels * kLanes) {
    Tile::template run<kTilePanels, C>(args, row, column);
  }
  for (; row < args.rows; row += kLanes) Tile::template run<1, C>(args, row, column);
}

template <class Tile, int kMost>
void panel_tiles(const PanelArgs& args) {
  int64_t column = 0;
  for (; column + kMost <= args.columns; column += kMost) panel_rows_by<Tile, kMost>(args, column);
  for (; column + 2 <= args.columns; column += 2) panel_rows_by<Tile, 2>(args, column);
  if (column < args.columns) panel_rows_by<Tile, 1>(args, column);
}

}  // namespace shoal::cpu::SHOAL_ISA
