// The formats of 32-element blocks; see formats.h.
#pragma once

#include "devices/cpu/kernels/format_bits.h"
#include "devices/cpu/kernels/levels.h"

namespace shoal::cpu::SHOAL_ISA {

/// Formats whose blocks have a scale. With kAdds, the blocks also have a minimum that is added to each element. The
/// codes are one of:
/// - 4-bit numbers
/// - 5-bit numbers whose fifth bits are stored separately
/// - signed bytes
/// - indices of levels (levels.h)
template <class B>
struct Of32 {
  using Block = B;
  static constexpr int kParts = 1, kGroups = 1;
  static constexpr bool kAdds = B::kAdds;
  static constexpr int offset() {
    if constexpr (quants::kHasLevels<B>) return LevelBytes<B>::kOffset;
    return B::kBits == 8 ? kSigned : B::kOffset;
  }
  static constexpr int bits() {
    if constexpr (quants::kHasLevels<B>) return LevelBytes<B>::kBits;
    return B::kBits;
  }
  static constexpr int kBits = bits(), kOffset = offset();

  static auto scales(const Block& block) {
    if constexpr (kAdds) {
      return BlockScalesAndAdds<1>{{scale_to_float(block.scale)}, {half_to_float(block.min)}};
    } else {
      return BlockScales<1>{{scale_to_float(block.scale)}};
    }
  }
  static I8x32 raw(const Block& block, int) {
    if constexpr (B::kBits == 8) {
      return load<I8x32>(block.values);
    } else if constexpr (B::kBits == 5) {
      return nibbles(block.nibbles) | fifth_bits(load<uint32_t>(block.high_bits));
    } else if constexpr (quants::kHasLevels<B>) {
      return raw_levels<B>(nibbles(block.nibbles));
    } else {
      return nibbles(block.nibbles);
    }
  }
};

#define SHOAL_QUANTIZED_32(id, ...) using id = Of32<quants::Block##id>;
#include "graph/dtypes.def"

}  // namespace shoal::cpu::SHOAL_ISA
