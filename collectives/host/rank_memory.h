// RankMemory: the memory of one rank in a host communicator. The rank's own thread is the first to write the memory, so
// the system allocates the memory on the NUMA node of this thread. All data exist twice: for even-numbered and for
// odd-numbered calls (parity). A rank that is one call ahead of another rank therefore does not overwrite data that the
// other rank still reads. A rank cannot be two calls ahead of another rank, because all ranks meet at least once in
// every collective.
#pragma once

#include <array>
#include <cstddef>

#include "collectives/host/call_mark.h"
#include "collectives/host/rendezvous.h"

namespace shoal::collectives::host {

/// Messages of at most this size are copied to the staging slots and need one meeting. Larger messages are read in
/// place and need two meetings. On 2 cores, the copy costs as much as the second meeting at a size between 2 and 4 KiB
/// (collectives_bench). With more ranks than cores, the copy costs as much as the second meeting at a size of 16 KiB.
inline constexpr size_t kSlotBytes = 4 * 1024;

/// A rank's description of its call. Other ranks read this description after the first meeting. Other ranks must not
/// read the texts and counts of the Call object, because a failed rank may already have freed them.
struct alignas(kCacheLine) Post {
  CallMark mark;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

struct alignas(4096) RankMemory {
  std::array<std::array<std::byte, kSlotBytes>, 2> slots;  ///< uninitialised until the rank's thread writes the slots
  std::array<Post, 2> posts;
};

}  // namespace shoal::collectives::host
