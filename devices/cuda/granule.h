// Rules for kernels that read a few bytes more than they need. A GPU maps memory by pages, so an aligned read of 16
// bytes cannot fail if at least one of its bytes is in a buffer. Rows of quantised blocks can begin and end at any
// byte. Kernels read these rows as aligned 16-byte vectors, including the vectors at both ends of a row. The surplus
// bytes belong to other tensors or to no tensor. Other kernels may write these bytes concurrently, so their values must
// not be used. The size of a buffer is a multiple of a granule (16 bytes), so compute-sanitizer reports no access
// outside an allocation. These rules cover all memory that kernels read:
// - Views and the memory of virtual devices are inside buffers.
// - Pinned buffers also consist of whole granules.
// - Memory of the caller is never wrapped in a buffer (DeviceCaps::buffer_from_host_ptr).
#pragma once

#include <cstddef>

namespace shoal::cuda {

inline constexpr size_t kGranule = 16;

/// Number of bytes to allocate for a buffer of `bytes` bytes. The result is at least one granule, so that each buffer
/// has its own address.
constexpr size_t whole_granules(size_t bytes) {
  return bytes == 0 ? kGranule : (bytes + kGranule - 1) / kGranule * kGranule;
}

}  // namespace shoal::cuda
