// Divides the product of packed groups (packed_layout.h) and a few columns into tiles of one group and up to
// kTileColumns columns. Each lane of a vector belongs to one row, so no sum crosses lanes.
#pragma once

#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/prefetch.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {

/// Prefetch distance in bytes. A distance of two pages hides the memory latency at full bandwidth.
inline constexpr size_t kAhead = 8192;

inline constexpr int kTileColumns = 4;

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
    int64_t column = 0;
    for (; column + kTileColumns <= args.columns; column += kTileColumns) {
      group_columns<Kind, kTileColumns>(args, group, row, column);
    }
    switch (args.columns - column) {
      case 3:
        group_columns<Kind, 3>(args, group, row, column);
        break;
      case 2:
        group_columns<Kind, 2>(args, group, row, column);
        break;
      case 1:
        group_columns<Kind, 1>(args, group, row, column);
        break;
      default:
        break;
    }
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
