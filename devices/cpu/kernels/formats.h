// How each quantised type is read. A block has kParts times 32 elements ("parts"), each with kGroups scales (2: one per
// 16 elements) and, with kAdds, as many addends:
//
//   element = (raw - kOffset) * scale + add
//
// raw(block, part) gives 32 bytes of kBits bits (at most 6), or signed bytes (kSigned: no offset). 32-element blocks
// also come in pairs, as halves(), and so may neighbouring parts of others that lie alike. scales(block) are indexed
// part * kGroups + group. Layouts are in graph/quants/blocks.h.
#pragma once

#include "devices/cpu/kernels/formats_32.h"
#include "devices/cpu/kernels/formats_coded.h"
#include "devices/cpu/kernels/formats_k.h"

namespace shoal::cpu::SHOAL_ISA {

/// The elements of a part as signed bytes.
template <class Format>
inline I8x32 values_of(const typename Format::Block& block, int part) {
  const I8x32 raw = Format::raw(block, part);
  if constexpr (Format::kOffset == kSigned) return raw;
  return raw - static_cast<int8_t>(Format::kOffset);
}

}  // namespace shoal::cpu::SHOAL_ISA
