// Divides the product that a PanelArgs describes into tiles of a few panels and a few columns. The accumulators of a
// tile stay in registers.
#pragma once

#include "devices/cpu/kernels/column_tiles.h"
#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/quad_dot.h"

namespace shoal::cpu::SHOAL_ISA {

/// Loads or stores the results of one panel and one column. The first row of the panel is row c_row + `row` of the
/// result. Rows after the last row of the matrix are zeros or are not stored.
inline F32 load_results(const PanelArgs& args, int64_t row, int64_t column) {
  const int64_t rows = args.rows - row;
  const float* from = args.c[column] + args.c_row + row;
  return rows < kLanes ? load_part(from, rows) : load<F32>(from);
}
inline void store_results(const PanelArgs& args, int64_t row, int64_t column, F32 sums) {
  const int64_t rows = args.rows - row;
  float* to = args.c[column] + args.c_row + row;
  if (rows < kLanes) {
    store_part(to, sums, rows);
  } else {
    store(to, sums);
  }
}

/// Stores the f32 sums of one panel. If args.add is true, adds the sums to the result.
template <int C>
inline void store_sums(const PanelArgs& args, int64_t row, int64_t column, const F32 (&sums)[C]) {
  SHOAL_UNROLL
  for (int c = 0; c < C; ++c) {
    const F32 sum = args.add ? load_results(args, row, column + c) + sums[c] : sums[c];
    store_results(args, row, column + c, sum);
  }
}

/// Tile::run<R, C>(args, row, column) multiplies R panels, starting at `row`, by C columns, starting at `column`. The
/// operations on an element of the result are the same for all R and C. A tile has Tile::panels(C) panels. All panels
/// of a tile use the same load of a column.
template <class Tile, int C>
void panel_rows_by(const PanelArgs& args, int64_t column) {
  constexpr int kPanels = Tile::panels(C);
  int64_t row = 0;
  for (; row + (kPanels - 1) * kLanes < args.rows; row += kPanels * kLanes) {
    Tile::template run<kPanels, C>(args, row, column);
  }
  for (; row < args.rows; row += kLanes) Tile::template run<1, C>(args, row, column);
}

template <class Tile, int kMost>
void panel_tiles(const PanelArgs& args) {
  for_column_tiles<kMost>(args.columns, [&]<int C>(int64_t column) { panel_rows_by<Tile, C>(args, column); });
}

/// Multiplies panels of integers by columns of integers. Panels and columns have scales. A Kind describes the format of
/// the panels and columns:
/// - A part of 32 elements has kGroups groups and kBytes bytes. A group has its own scale and kSteps vectors.
/// - kScales, kValues and kAddends are byte positions in a part. Only kinds with kAdds use kAddends.
/// - At kScales, each group has one vector of scales.
/// - Column and column_at() describe the columns.
/// - start() returns the initial integer sums. step() adds products to these sums.
/// - sum() returns the sum of the column's elements. Addends are multiplied by this sum.
template <class Kind>
struct IntegerTile {
  static constexpr int panels(int) { return kLanes == 16 ? 2 : 1; }

  template <int R, int C>
  static void multiply(const std::byte* const (&panels)[R], const typename Kind::Column (&b)[C], int64_t part, int g,
                       I32 (&sums)[R][C]) {
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      const I32 start = Kind::start(b[c], part, g);
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) sums[r][c] = start;
    }
    SHOAL_UNROLL
    for (int i = g * Kind::kSteps; i < (g + 1) * Kind::kSteps; ++i) {
      Bytes weights[R];
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) weights[r] = load<Bytes>(panels[r] + Kind::kValues + i * sizeof(Bytes));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const Bytes column = splat_quad(b[c].values + 32 * part + i * (32 / (Kind::kGroups * Kind::kSteps)));
        SHOAL_UNROLL
        for (int r = 0; r < R; ++r) sums[r][c] = Kind::step(sums[r][c], weights[r], column);
      }
    }
  }

  /// Multiplies the products of one group by the scales of the panel and of the column, and adds the results to `sums`.
  template <int R, int C>
  static void add_scaled(const std::byte* const (&panels)[R], const typename Kind::Column (&b)[C], int64_t part, int g,
                         const I32 (&products)[R][C], F32 (&sums)[R][C]) {
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const F32 scales = load<F32>(panels[r] + Kind::kScales + g * sizeof(F32));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        sums[r][c] = multiply_add(to_float(products[r][c]) * scales, splat(b[c].scales[part]), sums[r][c]);
      }
    }
  }

  /// Multiplies the addends of one group by the sum of each column's elements, and adds the results to `sums`.
  template <int R, int C>
  static void add_addends(const std::byte* const (&panels)[R], const typename Kind::Column (&b)[C], int64_t part, int g,
                          F32 (&sums)[R][C]) {
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const F32 addends = load<F32>(panels[r] + Kind::kAddends + g * sizeof(F32));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        sums[r][c] = multiply_add(addends, splat(Kind::sum(b[c], part, g)), sums[r][c]);
      }
    }
  }

  template <int R, int C>
  static void run(const PanelArgs& args, int64_t row, int64_t column) {
    typename Kind::Column b[C];
    for (int c = 0; c < C; ++c) b[c] = Kind::column_at(args.b[column + c], args.k_total, args.k_begin);
    const std::byte* panels[R];
    for (int r = 0; r < R; ++r) panels[r] = args.panel + (row / kLanes + r) * args.panel_stride;
    F32 sums[R][C] = {};
    if (args.add) {
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) {
        SHOAL_UNROLL
        for (int c = 0; c < C; ++c) sums[r][c] = load_results(args, row + r * kLanes, column + c);
      }
    }
    for (int64_t part = 0; part < (args.k + 31) / 32; ++part) {
      SHOAL_UNROLL
      for (int g = 0; g < Kind::kGroups; ++g) {
        I32 products[R][C];
        multiply<R, C>(panels, b, part, g, products);
        add_scaled<R, C>(panels, b, part, g, products, sums);
        if constexpr (Kind::kAdds) add_addends<R, C>(panels, b, part, g, sums);
      }
      for (int r = 0; r < R; ++r) panels[r] += Kind::kBytes;
    }
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) store_results(args, row + r * kLanes, column + c, sums[r][c]);
    }
  }
};

}  // namespace shoal::cpu::SHOAL_ISA
