// Panels of quantised weights (panel_layout.h) times quantised columns.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/panel_layout.h"
#include "devices/cpu/kernels/panel_tiles.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <int kGroups_, bool kAdds_>
struct Quantized : PanelLayout<kGroups_, kAdds_> {
  using Column = SHOAL_ISA::Column;
  static constexpr int kGroups = kGroups_, kSteps = 8 / kGroups;
  static constexpr bool kAdds = kAdds_;
  static Column column_at(const std::byte* at, int64_t k_total, int64_t k_begin) {
    return SHOAL_ISA::column_at(at, k_total, k_begin);
  }
  static I32 start(const Column& column, int64_t part, int g) {
    return splat(kGroups == 2 ? column.half_starts[2 * part + g] : column.starts[part]);
  }
  static I32 step(I32 sum, Bytes weights, Bytes column) { return quad_dot(sum, weights, column); }
  static float sum(const Column& column, int64_t part, int g) {
    return kGroups == 2 ? column.half_sums[2 * part + g] : column.sums[part];
  }
};

}  // namespace

template <int kGroups, bool kAdds>
void multiply(const PanelArgs& args) {
  panel_tiles<IntegerTile<Quantized<kGroups, kAdds>>, kIntegerColumns>(args);
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
