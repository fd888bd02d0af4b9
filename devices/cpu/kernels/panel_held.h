// Tiles for instruction sets with 16 vector registers. 16 registers cannot hold both the integer sums and the f32 sums
// of a tile. Instead, registers hold the weights of a few steps, and one column after another is multiplied by these
// weights. The f32 sums stay in the L1 cache.
#pragma once

#include "devices/cpu/kernels/panel_tiles.h"

namespace shoal::cpu::SHOAL_ISA {

/// Computes the same products as IntegerTile in another order. The integer sums are exact, and the float operations are
/// the same. The number of columns of a tile is not a constant. Instead of step(), a Kind defines:
/// - kHeldSteps: the number of steps whose weights are in registers at a time
/// - held(sum, weights, columns): adds the products of these steps to `sum`
template <class Kind>
struct HeldTile {
  static constexpr int kMost = 8;  ///< largest number of columns of a tile
  static constexpr int kSteps = Kind::kHeldSteps;
  static constexpr int kChunks = Kind::kSteps / kSteps;
  using Column = typename Kind::Column;

  /// Multiplies `weights` by one column, and adds the products to `sums`. `weights` contains the weights of kSteps
  /// steps of the part, starting at step `step`.
  template <int R>
  static void add_products(const Bytes (&weights)[R][kSteps], const Column& b, int64_t part, int step, I32 (&sums)[R]) {
    constexpr int kStepElements = 32 / (Kind::kGroups * Kind::kSteps);
    const auto* values = b.values + 32 * part;
    Bytes columns[kSteps];
    SHOAL_UNROLL
    for (int i = 0; i < kSteps; ++i) columns[i] = splat_quad(values + (step + i) * kStepElements);
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) sums[r] = Kind::held(sums[r], weights[r], columns);
  }

  /// Multiplies group g of a part by all columns, and adds the scaled products to `sums`. All columns are processed
  /// before the weights in registers change.
  template <int R>
  static void add_group(const std::byte* const (&panels)[R], const Column (&b)[kMost], int columns, int64_t part, int g,
                        F32 (&sums)[kMost][R]) {
    I32 products[kMost][R];
    SHOAL_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int step = g * Kind::kSteps + chunk * kSteps;
      Bytes weights[R][kSteps];
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) {
        SHOAL_UNROLL
        for (int i = 0; i < kSteps; ++i) {
          weights[r][i] = load<Bytes>(panels[r] + Kind::kValues + (step + i) * sizeof(Bytes));
        }
      }
      SHOAL_NO_UNROLL
      for (int c = 0; c < columns; ++c) {
        I32 of_column[R];
        SHOAL_UNROLL
        for (int r = 0; r < R; ++r) of_column[r] = chunk == 0 ? Kind::start(b[c], part, g) : products[c][r];
        add_products(weights, b[c], part, step, of_column);
        SHOAL_UNROLL
        for (int r = 0; r < R; ++r) {
          if (chunk + 1 < kChunks) {
            products[c][r] = of_column[r];
            continue;
          }
          const F32 scales = load<F32>(panels[r] + Kind::kScales + g * sizeof(F32));
          sums[c][r] = multiply_add(to_float(of_column[r]) * scales, splat(b[c].scales[part]), sums[c][r]);
          if constexpr (Kind::kAdds) {
            const F32 addends = load<F32>(panels[r] + Kind::kAddends + g * sizeof(F32));
            sums[c][r] = multiply_add(addends, splat(Kind::sum(b[c], part, g)), sums[c][r]);
          }
        }
      }
    }
  }

  /// Multiplies R panels, starting at `row`, by at most kMost columns, starting at `column`.
  template <int R>
  static void run(const PanelArgs& args, int64_t row, int64_t column, int columns) {
    Column b[kMost];
    F32 sums[kMost][R];
    SHOAL_NO_UNROLL
    for (int c = 0; c < columns; ++c) {
      b[c] = Kind::column_at(args.b[column + c], args.k_total, args.k_begin);
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) sums[c][r] = args.add ? load_results(args, row + r * kLanes, column + c) : F32{};
    }
    const std::byte* panels[R];
    for (int r = 0; r < R; ++r) panels[r] = args.panel + (row / kLanes + r) * args.panel_stride;
    SHOAL_NO_UNROLL
    for (int64_t part = 0; part < (args.k + 31) / 32; ++part) {
      SHOAL_UNROLL
      for (int g = 0; g < Kind::kGroups; ++g) add_group(panels, b, columns, part, g, sums);
      for (int r = 0; r < R; ++r) panels[r] += Kind::kBytes;
    }
    SHOAL_NO_UNROLL
    for (int c = 0; c < columns; ++c) {
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) store_results(args, row + r * kLanes, column + c, sums[c][r]);
    }
  }

  static void tiles(const PanelArgs& args) {
    for (int64_t column = 0; column < args.columns;) {
      const auto columns = static_cast<int>(tile_columns(args.columns - column, kMost));
      int64_t row = 0;
      for (; row + kLanes < args.rows; row += 2 * kLanes) run<2>(args, row, column, columns);
      if (row < args.rows) run<1>(args, row, column, columns);
      column += columns;
    }
  }
};

/// Multiplies the panels by the columns, in tiles that fit the registers of the instruction-set level. An IntegerTile
/// needs two accumulators for each panel and column. It also needs registers for weights and for a few elements of a
/// column.
template <class Kind>
void integer_tiles(const PanelArgs& args) {
  if constexpr (kLanes == 8) {
    HeldTile<Kind>::tiles(args);
  } else {
    panel_tiles<IntegerTile<Kind>, kLanes == 16 ? 6 : 4>(args);
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
