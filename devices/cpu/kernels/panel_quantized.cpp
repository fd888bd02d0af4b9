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

  /// Integer products of one group, scaled by the weights' scales.
  template <int C>
  static void group(const std::byte* panel, const Column (&b)[C], int64_t part, int g, F32 (&products)[C]) {
    I32 sums[C];
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      sums[c] = splat(kGroups == 2 ? b[c].half_starts[2 * part + g] : b[c].starts[part]);
    }
    SHOAL_UNROLL
    for (int i = g * kQuads; i < (g + 1) * kQuads; ++i) {
      const Bytes weights = load<Bytes>(panel + Layout::kValues + i * sizeof(Bytes));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) sums[c] = quad_dot(sums[c], weights, splat_quad(b[c].values + 32 * part + 4 * i));
    }
    const F32 scales = load<F32>(panel + Layout::kScales + g * sizeof(F32));
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      products[c] = g == 0 ? to_float(sums[c]) * scales : multiply_add(to_float(sums[c]), scales, products[c]);
    }
  }

  template <int C>
  static void run(const PanelArgs& args, int64_t column) {
    Column b[C];
    for (int c = 0; c < C; ++c) b[c] = column_at(args.b[column + c], args.k_total, args.k_begin);
    F32 sums[C] = {};
    const std::byte* panel = args.panel;
    for (int64_t part = 0; part < args.k / 32; ++part, panel += Layout::kBytes) {
      F32 products[C];
      SHOAL_UNROLL
      for (int g = 0; g < kGroups; ++g) group<C>(panel, b, part, g, products);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) sums[c] = multiply_add(products[c], splat(b[c].scales[part]), sums[c]);
      if constexpr (kAdds) add<C>(panel, b, part, sums);
    }
    store_sums(args, column, sums);
  }

  /// Addends times the sums of the column.
  template <int C>
  static void add(const std::byte* panel, const Column (&b)[C], int64_t part, F32 (&sums)[C]) {
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      const F32 first = load<F32>(panel + Layout::kAddends);
      if constexpr (kGroups == 1) {
        sums[c] = multiply_add(first, splat(b[c].sums[part]), sums[c]);
      } else {
        const F32 second = load<F32>(panel + Layout::kAddends + sizeof(F32));
        const float* of = b[c].half_sums + 2 * part;
        sums[c] = multiply_add(second, splat(of[1]), multiply_add(first, splat(of[0]), sums[c]));
      }
    }
  }
};

// Two accumulators per column, and room for the weights and a product.
constexpr int kMostColumns = kLanes == 16 ? 8 : 4;

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
