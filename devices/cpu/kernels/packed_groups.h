// Divides the product of packed groups (packed_layout.h) and a few columns into tiles of one group and up to
// kDotColumns columns. Each lane of a vector belongs to one row, so no sum crosses lanes.
#pragma once

#include "devices/cpu/kernels/column_tiles.h"
#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/prefetch.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {

/// Prefetch distance in bytes. A distance of two pages hides the memory latency at full bandwidth.
inline constexpr size_t kAhead = 8192;

template <class Kind, int C>
void group_columns(const DotArgs& args, const std::byte* group, int64_t row, int64_t column) {
  F32 sums[C] = {};
  Kind::template run<C>(args, group, column, sums);
  const int64_t rows = args.rows - row;
  for (int c = 0; c < C; ++c) {
    float* to = args.c[column + c] + args.c_row + row;
    if (rows >= kLanes) {
      store(to, sums[c]);
    } else {
      store_part(to, sums[c], rows);
    }
  }
}

/// Kind::run<C>(args, group, column, sums) multiplies a group by C columns, starting at `column`. The operations on an
/// element of the result are the same for all C.
template <class Kind>
void dot_groups(const DotArgs& args) {
  const std::byte* group = args.a;
  for (int64_t row = 0; row < args.rows; row += kLanes, group += args.a_stride) {
    for_column_tiles<kDotColumns>(args.columns,
                                  [&]<int C>(int64_t column) { group_columns<Kind, C>(args, group, row, column); });
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
