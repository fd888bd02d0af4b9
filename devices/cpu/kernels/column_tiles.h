// Divides the columns of a product evenly among tiles.
#pragma once

#include <cstdint>

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

/// Number of columns of the next tile. The remaining columns are divided evenly among tiles of at most `most` columns,
/// so that no tile has much fewer columns than the other tiles.
inline int64_t tile_columns(int64_t remaining, int64_t most) {
  const int64_t tiles = (remaining + most - 1) / most;
  return (remaining + tiles - 1) / tiles;
}

/// Calls f.operator()<columns>(). `columns` is from 1 to kMost.
template <int kMost, class F>
void with_columns(int64_t columns, const F& f) {
  if constexpr (kMost > 1) {
    if (columns < kMost) return with_columns<kMost - 1>(columns, f);
  }
  f.template operator()<kMost>();
}

/// Calls f.operator()<C>(column) for each tile. The tile has C columns and begins with column `column`. C is at most
/// kMost.
template <int kMost, class F>
void for_column_tiles(int64_t columns, const F& f) {
  for (int64_t column = 0; column < columns;) {
    const int64_t count = tile_columns(columns - column, kMost);
    with_columns<kMost>(count, [&]<int C>() { f.template operator()<C>(column); });
    column += count;
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
