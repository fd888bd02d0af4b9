// Tiles for instruction sets with 16 vector registers. 16 registers cannot hold both the integer sums and the f32 sums
// of a tile. Instead, registers hold the weights of a few steps, and one column after another is multiplied by these
// weights. The f32 sums stay in the L1 cache.
#pragma once

#include "devices/cpu/kernels/panel_tiles.h"

namespace shoal::cpu::SHOAL_ISA {

/// Computes the same products as IntegerTile in another order. The integer sums are exact, and the float operations are
/// the same. Instead of step(), a Kind defines:
/// - kHeldSteps: the number of steps whose weights are in registers at a time
/// - held(sum, weights, columns): adds the products of these steps to `sum`
template <class Kind>
struct HeldTile {
  static constexpr int kPanels = 2, kSteps = Kind::kHeldSteps;
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
  template <int R, int C>
  static void add_group(const std::byte* const (&panels)[R], const Column (&b)[C], int64_t part, int g,
                        F32 (&sums)[C][R]) {
    I32 products[C][R];
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
      for (int c = 0; c < C; ++c) {
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

  template <int R, int C>
  static void run(const PanelArgs& args, int64_t row, int64_t column) {
    Column b[C];
    for (int c = 0; c < C; ++c) b[c] = Kind::column_at(args.b[column + c], args.k_total, args.k_begin);
    const std::byte* panels[R];
    for (int r = 0; r < R; ++r) panels[r] = args.panel + (row / kLanes + r) * args.panel_stride;
    F32 sums[C][R] = {};
    SHOAL_NO_UNROLL
    for (int64_t part = 0; part < (args.k + 31) / 32; ++part) {
      SHOAL_UNROLL
      for (int g = 0; g < Kind::kGroups; ++g) add_group(panels, b, part, g, sums);
      for (int r = 0; r < R; ++r) panels[r] += Kind::kBytes;
    }
    for (int r = 0; r < R; ++r) {
      F32 of_panel[C];
      for (int c = 0; c < C; ++c) of_panel[c] = sums[c][r];
      store_sums(args, row + r * kLanes, column, of_panel);
    }
  }
};

/// Multiplies the panels by the columns, in tiles that fit the registers of the instruction-set level. An IntegerTile
/// needs two accumulators for each panel and column. It also needs registers for weights and for a few elements of a
/// column.
template <class Kind>
void integer_tiles(const PanelArgs& args) {
  if constexpr (kLanes == 8) {
    panel_tiles<HeldTile<Kind>, 8>(args);
  } else {
    panel_tiles<IntegerTile<Kind>, kLanes == 16 ? 6 : 4>(args);
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
