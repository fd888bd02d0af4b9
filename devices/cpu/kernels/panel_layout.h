// A panel of quantised weights: per 32 elements, the scales of all rows (kGroups vectors), their addends (if any),
// then the elements as bytes with kPanelBias added, four elements of all rows to a vector (8 vectors).
#pragma once

#include "devices/cpu/kernels/formats.h"
#include "devices/cpu/kernels/quad_dot.h"

namespace shoal::cpu::SHOAL_ISA {

template <int kGroups, bool kAdds>
struct PanelLayout {
  static constexpr size_t kScales = 0;
  static constexpr size_t kAddends = kGroups * sizeof(F32);
  static constexpr size_t kValues = kAddends + (kAdds ? kGroups * sizeof(F32) : 0);
  static constexpr size_t kBytes = kValues + 8 * sizeof(Bytes);
};

/// Whether panels of a format keep its unsigned bytes as they are. Otherwise they are as quad_dot takes weights.
template <class Format>
inline constexpr bool kKeepsUnsigned = kUnsignedPanels && (Format::kOffset != kSigned);
template <class Format>
inline constexpr int kPanelBias = kKeepsUnsigned<Format> ? Format::kOffset : kWeightBias;
/// How many bits of these bytes may be set, as far as that makes a difference.
template <class Format>
inline constexpr int kPanelBits = kKeepsUnsigned<Format> ? Format::kBits : 8;

}  // namespace shoal::cpu::SHOAL_ISA
