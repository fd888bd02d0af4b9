// A panel of quantised weights. Each part of 32 elements is stored in this order:
// - the scales of all rows (kGroups vectors)
// - the addends, if the format has addends (kGroups vectors)
// - the elements as bytes, with kPanelBias added: 8 vectors, each with four elements of every row
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

/// Whether panels store the unsigned bytes of a format unchanged. Otherwise panels store bytes in the form that
/// quad_dot expects.
template <class Format>
inline constexpr bool kKeepsUnsigned = kUnsignedPanels && (Format::kOffset != kSigned);
/// Whether the bytes of a format are signed 7-bit numbers, which become unsigned by an offset of 64.
template <class Format>
inline constexpr bool kHasSevenBits = false;
template <class Format>
requires requires {
  Format::kSignsApart;
}
inline constexpr bool kHasSevenBits<Format> = kUnsignedPanels && Format::kSignsApart;

template <class Format>
inline constexpr int kPanelBias = kHasSevenBits<Format>    ? 64
                                  : kKeepsUnsigned<Format> ? Format::kOffset
                                                           : kWeightBias;
/// Number of significant bits of a byte if panels store unsigned bytes; otherwise 8.
template <class Format>
inline constexpr int kPanelBits = kHasSevenBits<Format>    ? 7
                                  : kKeepsUnsigned<Format> ? Format::kBits
                                                           : 8;

}  // namespace shoal::cpu::SHOAL_ISA
