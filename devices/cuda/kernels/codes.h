// Compiles the functions of graph/quants/codes.inc for the device, with the codebooks in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cuda/kernels/memory.h"
#include "graph/quants/blocks.h"
#include "graph/quants/grids.h"

namespace shoal::cuda {

#define SHOAL_DEVICE_GRID(id, Word, count, levels)                            \
  [[maybe_unused]] __device__ constexpr quants::Grid<Word, count> kGrid##id = \
      quants::grids::expand<Word, count>(quants::grids::k##id##Set, quants::grids::levels)
SHOAL_FOR_GRIDS(SHOAL_DEVICE_GRID);
#undef SHOAL_DEVICE_GRID

#define SHOAL_CODES __device__
#include "graph/quants/codes.inc"
#undef SHOAL_CODES

/// The bytes of a block in global or shared memory.
struct BlockBytes {
  const uint8_t* at;

  __device__ explicit BlockBytes(const void* block) : at(static_cast<const uint8_t*>(block)) {}
  __device__ uint32_t byte(int i) const { return at[i]; }
  __device__ uint32_t half(int i) const { return load_as<uint16_t>(at + i); }
};

}  // namespace shoal::cuda
