// Cuts a DotArgs into tiles of a few rows by a few columns, whose accumulators stay in registers.
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

/// Tile::run<R, C>(args, row, column) makes R rows times C columns, each element in the same way for all R and C.
template <class Tile>
void dot_tiles(const DotArgs& args) {
  int64_t row = 0;
  for (; row + 4 <= args.rows; row += 4) {
    int64_t column = 0;
    for (; column + 2 <= args.columns; column += 2) {
      Tile::template run<2, 2>(args, row, column);
      Tile::template run<2, 2>(args, row + 2, column);
    }
    if (column < args.columns) Tile::template run<4, 1>(args, row, column);
  }
  for (; row < args.rows; ++row) {
    for (int64_t column = 0; column < args.columns; ++column) Tile::template run<1, 1>(args, row, column);
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
