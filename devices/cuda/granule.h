// How far kernels may read beside what they want. A GPU maps memory by pages, so an aligned read of 16 bytes of which
// one is in a buffer never fails, and rows of quantised blocks, which begin and end anywhere, are read by such vectors
// up to their very ends. What is read besides belongs to other tensors or to none, may be written meanwhile, and must
// not be used. Buffers are whole granules, so that compute-sanitizer sees nothing outside of an allocation either. That
// holds for every path to a kernel: views and parts of virtual devices lie in buffers, pinned ones too, and there is no
// buffer around memory of the caller (DeviceCaps::buffer_from_host_ptr).
#pragma once

#include <cstddef>

namespace shoal::cuda {

inline constexpr size_t kGranule = 16;

/// What is allocated for a buffer of this size: at least one granule, for an address of its own.
constexpr size_t whole_granules(size_t bytes) {
  return bytes == 0 ? kGranule : (bytes + kGranule - 1) / kGranule * kGranule;
}

}  // namespace shoal::cuda
