// Defines how each quantised type is read. A block consists of kParts "parts" of 32 elements. A part has kGroups
// scales: one for all 32 elements, or one for each half of 16 elements. With kAdds, each scale has an addend:
//
//   element = (raw - kOffset) * scale + add
//
// raw(block, part) returns 32 bytes. If kOffset is kSigned, the bytes are signed and have no offset. Otherwise each
// byte is an unsigned number of kBits bits (at most 6). scales(block) returns an array. The scale of a group is at
// [part * kGroups + group]. graph/quants/blocks.h describes the layouts.
#pragma once

#include "devices/cpu/kernels/formats_32.h"
#include "devices/cpu/kernels/formats_coded.h"
#include "devices/cpu/kernels/formats_k.h"

namespace shoal::cpu::SHOAL_ISA {

/// Returns the elements of a part as signed bytes.
template <class Format>
inline I8x32 values_of(const typename Format::Block& block, int part) {
  const I8x32 raw = Format::raw(block, part);
  if constexpr (Format::kOffset == kSigned) return raw;
  return raw - static_cast<int8_t>(Format::kOffset);
}

}  // namespace shoal::cpu::SHOAL_ISA
