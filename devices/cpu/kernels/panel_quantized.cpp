// Panels of quantised weights (panel_layout.h) times quantised columns.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/panel_layout.h"
#include "devices/cpu/kernels/panel_tiles.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

/// Four bytes of a column for every lane.
inline Bytes splat_quad(const int8_t* from) {
  return bits_as<Bytes>(splat(load<int32_t>(from)));
}

template <int kGroups, bool kAdds>
struct Tile {
  using Layout = PanelLayout<kGroups, kAdds>;
  static constexpr int kQuads = 8 / kGroups;  // per group

  /// Integer products of one group.
  template <int R, int C>
  static void multiply(const std::byte* const (&panels)[R], const Column (&b)[C], int64_t part, int g,
                       I32 (&sums)[R][C]) {
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      const I32 start = splat(kGroups == 2 ? b[c].half_starts[2 * part + g] : b[c].starts[part]);
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) sums[r][c] = start;
    }
    SHOAL_UNROLL
    for (int i = g * kQuads; i < (g + 1) * kQuads; ++i) {
      Bytes weights[R];
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) weights[r] = load<Bytes>(panels[r] + Layout::kValues + i * sizeof(Bytes));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const Bytes column = splat_quad(b[c].values + 32 * part + 4 * i);
        SHOAL_UNROLL
        for (int r = 0; r < R; ++r) sums[r][c] = quad_dot(sums[r][c], weights[r], column);
      }
    }
  }

  /// Adds the products of one group with both scales.
  template <int R, int C>
  static void add_scaled(const std::byte* const (&panels)[R], const Column (&b)[C], int64_t part, int g,
                         const I32 (&products)[R][C], F32 (&sums)[R][C]) {
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const F32 scales = load<F32>(panels[r] + Layout::kScales + g * sizeof(F32));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        sums[r][c] = multiply_add(to_float(products[r][c]) * scales, splat(b[c].scales[part]), sums[r][c]);
      }
    }
  }

  /// Addends times the sums of the column.
  template <int R, int C>
  static void add_addends(const std::byte* const (&panels)[R], const Column (&b)[C], int64_t part, int g,
                          F32 (&sums)[R][C]) {
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const F32 addends = load<F32>(panels[r] + Layout::kAddends + g * sizeof(F32));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const float sum = kGroups == 2 ? b[c].half_sums[2 * part + g] : b[c].sums[part];
        sums[r][c] = multiply_add(addends, splat(sum), sums[r][c]);
      }
    }
  }

  template <int R, int C>
  static void run(const PanelArgs& args, int64_t row, int64_t column) {
    Column b[C];
    for (int c = 0; c < C; ++c) b[c] = column_at(args.b[column + c], args.k_total, args.k_begin);
    const std::byte* panels[R];
    for (int r = 0; r < R; ++r) panels[r] = args.panel + (row / kLanes + r) * args.panel_stride;
    F32 sums[R][C] = {};
    for (int64_t part = 0; part < args.k / 32; ++part) {
      SHOAL_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        I32 products[R][C];
        multiply<R, C>(panels, b, part, g, products);
        add_scaled<R, C>(panels, b, part, g, products, sums);
        if constexpr (kAdds) add_addends<R, C>(panels, b, part, g, sums);
      }
      for (int r = 0; r < R; ++r) panels[r] += Layout::kBytes;
    }
    for (int r = 0; r < R; ++r) store_sums(args, row + r * kLanes, column, sums[r]);
  }
};

// Two accumulators for each panel and column, and room for weights and a piece of the column.
constexpr int kMostColumns = kLanes == 16 ? 6 : 4;

}  // namespace

template <int kGroups, bool kAdds>
void multiply(const PanelArgs& args) {
  panel_tiles<Tile<kGroups, kAdds>, kMostColumns>(args);
}

template <int kGroups, bool kAdds>
size_t panel_bytes(int64_t k) {
  return (static_cast<size_t>(k / 32) * PanelLayout<kGroups, kAdds>::kBytes + 63) / 64 * 64;
}

template void multiply<1, false>(const PanelArgs&);
template void multiply<1, true>(const PanelArgs&);
template void multiply<2, false>(const PanelArgs&);
template void multiply<2, true>(const PanelArgs&);
template size_t panel_bytes<1, false>(int64_t);
template size_t panel_bytes<1, true>(int64_t);
template size_t panel_bytes<2, false>(int64_t);
template size_t panel_bytes<2, true>(int64_t);

}  // namespace shoal::cpu::SHOAL_ISA
