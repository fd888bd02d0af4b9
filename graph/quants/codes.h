// Provides the functions of codes.inc for host code outside of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "graph/quants/blocks.h"
#include "graph/quants/grids.h"

namespace shoal::quants {

#define SHOAL_CODES
#include "graph/quants/codes.inc"
#undef SHOAL_CODES

/// The bytes of a block in memory.
struct BlockBytes {
  const uint8_t* at;

  explicit BlockBytes(const void* block) : at(static_cast<const uint8_t*>(block)) {}
  uint32_t byte(int i) const { return at[i]; }
  uint32_t half(int i) const {
    uint16_t value;
    std::memcpy(&value, at + i, sizeof value);
    return value;
  }
};

/// Returns code j of the eight codes.
inline int code_at(Codes codes, int j) {
  return static_cast<int8_t>((j < 4 ? codes.low : codes.high) >> (j % 4 * 8));
}

}  // namespace shoal::quants
