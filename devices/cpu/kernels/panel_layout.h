// A panel of quantised weights: per 32 elements, the scales of all rows (kGroups vectors), their addends (if any),
// then the stored() bytes, four elements of all rows to a vector (8 vectors).
#pragma once

#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

template <int kGroups, bool kAdds>
struct PanelLayout {
  static constexpr size_t kScales = 0;
  static constexpr size_t kAddends = kGroups * sizeof(F32);
  static constexpr size_t kValues = kAddends + (kAdds ? kGroups * sizeof(F32) : 0);
  static constexpr size_t kBytes = kValues + 8 * sizeof(Bytes);
};

}  // namespace shoal::cpu::SHOAL_ISA
