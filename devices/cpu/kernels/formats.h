// How each quantised type is read. A block consists of kParts "parts" of 32 elements. A part has kGroups scales (2: one
// per 16 elements) and, with kAdds, as many addends:
//
//   element = (raw - kOffset) * scale + add
//
// raw(block, part) returns 32 bytes. Each byte is unsigned with kBits bits (at most 6), or signed (kSigned) without an
// offset. halves() returns two 32-element blocks at once; some larger formats offer it for neighbouring parts with the
// same layout. scales(block) are indexed part * kGroups + group. graph/quants/blocks.h describes the layouts.
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
