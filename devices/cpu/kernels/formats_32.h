// The formats of 32-element blocks; see formats.h.
#pragma once

#include "devices/cpu/kernels/format_bits.h"

namespace shoal::cpu::SHOAL_ISA {

/// A scale and, with kAdds, a minimum, which is added; codes of 4 bits, of 4 and a fifth, or signed bytes.
template <class B>
struct Of32 {
  using Block = B;
  static constexpr int kParts = 1, kGroups = 1;
  static constexpr bool kAdds = B::kAdds;
  static constexpr int kBits = B::kBits, kOffset = kBits == 8 ? kSigned : B::kOffset;

  static auto scales(const Block& block) {
    if constexpr (kAdds) {
      return BlockScalesAndAdds<1>{{half_to_float(block.scale)}, {half_to_float(block.min)}};
    } else {
      return BlockScales<1>{{half_to_float(block.scale)}};
    }
  }
  static I8x32 raw(const Block& block, int) {
    if constexpr (kBits == 8) {
      return load<I8x32>(block.values);
    } else if constexpr (kBits == 5) {
      return nibbles(block.nibbles) | fifth_bits(load<uint32_t>(block.high_bits));
    } else {
      return nibbles(block.nibbles);
    }
  }
  static Halves halves(const Block& a, const Block& b) {
    if constexpr (kBits == 8) {
      return join_halves(a.values, b.values);
    } else if constexpr (kBits == 5) {
      const Halves low = nibble_halves(a.nibbles, b.nibbles), high = fifth_bit_halves(a.high_bits, b.high_bits);
      return {low.first | high.first, low.second | high.second};
    } else {
      return nibble_halves(a.nibbles, b.nibbles);
    }
  }
};

#define SHOAL_QUANTIZED_32(id, ...) using id = Of32<quants::Block##id>;
#include "graph/dtypes.def"

}  // namespace shoal::cpu::SHOAL_ISA
