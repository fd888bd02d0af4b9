// Panels of f32 weights. As in a packed group, one vector contains element i of all rows.
#include "devices/cpu/kernels/panel_tiles.h"
#include "devices/cpu/kernels/row_lanes.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

struct Tile {
  /// With few columns, a tile needs more panels for enough independent sums.
  static constexpr int panels(int columns) { return kLanes >= 8 ? (columns <= 2 ? 4 : 2) : 1; }

  template <int R, int C>
  static void run(const PanelArgs& args, int64_t row, int64_t column) {
    const float* b[C];
    for (int c = 0; c < C; ++c) b[c] = reinterpret_cast<const float*>(args.b[column + c]) + args.k_begin;
    const std::byte* panels[R];
    for (int r = 0; r < R; ++r) panels[r] = args.panel + (row / kLanes + r) * args.panel_stride;
    F32 sums[R][C] = {};
    for (int64_t i = 0; i < args.k; ++i) {
      F32 weights[R];
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) weights[r] = load<F32>(panels[r] + i * sizeof(F32));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const F32 value = splat(b[c][i]);
        SHOAL_UNROLL
        for (int r = 0; r < R; ++r) sums[r][c] = multiply_add(weights[r], value, sums[r][c]);
      }
    }
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) store_sums(args, row + r * kLanes, column, sums[r]);
  }
};

}  // namespace

void float_panel_from_rows(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel) {
  const RowLanes<RowsF32> lanes(a, a_stride, rows);
  for (int64_t i = 0; i < k; i += kLanes) {
    F32 v[kLanes];
    lanes.load(i, k, v);
    for (int64_t j = i; j < k && j < i + kLanes; ++j) store(panel + j * sizeof(F32), v[j - i]);
  }
}

void float_panel_from_packed(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel) {
  const auto elements = sizeof(F32);  // bytes of a vector that contains one element of each row
  __builtin_memcpy(panel, group + static_cast<size_t>(k_begin) * elements, static_cast<size_t>(k) * elements);
}

void multiply_floats(const PanelArgs& args) {
  panel_tiles<Tile, kLanes == 16 ? 12 : kLanes == 8 ? 6 : 8>(args);
}

size_t float_panel_bytes(int64_t k) {
  return (static_cast<size_t>(k) * sizeof(F32) + 63) / 64 * 64;
}

}  // namespace shoal::cpu::SHOAL_ISA
