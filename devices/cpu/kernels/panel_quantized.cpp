// Multiplies panels of quantised weights (panel_layout.h) by quantised columns.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/panel_held.h"
#include "devices/cpu/kernels/panel_layout.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <int kGroups_, bool kAdds_, int kBias, int kBits>
struct Quantized : PanelLayout<kGroups_, kAdds_> {
  using Column = SHOAL_ISA::Column;
  static constexpr int kGroups = kGroups_, kSteps = 8 / kGroups;
  static constexpr bool kAdds = kAdds_;
  static Column column_at(const std::byte* at, int64_t k_total, int64_t k_begin) {
    return SHOAL_ISA::column_at(at, k_total, k_begin);
  }
  static I32 start(const Column& column, int64_t part, int g) {
    return start_sums<kBias>(kGroups == 2 ? column.half_starts[2 * part + g] : column.starts[part]);
  }
  static I32 step(I32 sum, Bytes weights, Bytes column) { return quad_dot(sum, weights, column); }
  static float sum(const Column& column, int64_t part, int g) {
    return kGroups == 2 ? column.half_sums[2 * part + g] : column.sums[part];
  }

  // If weights are signed bytes, registers hold the weights of 2 steps instead of 4, because quad_dot() needs a
  // register for magnitudes.
  static constexpr int kHeldSteps = kBits == 8 ? 2 : 4;
  static I32 held(I32 sum, const Bytes (&weights)[kHeldSteps], const Bytes (&columns)[kHeldSteps]) {
    return quad_dots<kBits>(sum, weights, columns);
  }
};

}  // namespace

template <class Format>
void multiply(const PanelArgs& args) {
  // Formats with the same template parameters share one instantiation.
  integer_tiles<Quantized<Format::kGroups, Format::kAdds, kPanelBias<Format>, kPanelBits<Format>>>(args);
}

template <int kGroups, bool kAdds>
size_t panel_bytes(int64_t k) {
  return (static_cast<size_t>(k / 32) * PanelLayout<kGroups, kAdds>::kBytes + 63) / 64 * 64;
}

#define SHOAL_QUANTIZED(id, ...) template void multiply<id>(const PanelArgs&);
#include "graph/dtypes.def"
template size_t panel_bytes<1, false>(int64_t);
template size_t panel_bytes<1, true>(int64_t);
template size_t panel_bytes<2, false>(int64_t);
template size_t panel_bytes<2, true>(int64_t);

}  // namespace shoal::cpu::SHOAL_ISA
