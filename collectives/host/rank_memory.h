// RankMemory: the memory that a host communicator keeps for each rank. Each rank has one block, first touched by the
// rank's own thread so that it is local to that thread. All data exist twice, for even-numbered and odd-numbered calls
// (parity), so a rank that is one call ahead does not overwrite data of the current call. A rank cannot be two calls
// ahead, because every collective has at least one meeting of all ranks.
#pragma once

#include <array>
#include <cstddef>

#include "collectives/host/call_mark.h"
#include "collectives/host/rendezvous.h"

namespace shoal::collectives::host {

/// Messages up to this size are copied to the staging slots and need one meeting. Larger messages are read in place and
/// need two meetings. On 2 cores the copy becomes more expensive than the second meeting between 2 and 4 KiB
/// (collectives_bench). With more ranks than cores this happens at 16 KiB.
inline constexpr size_t kSlotBytes = 4 * 1024;

/// A rank's description of its call, which other ranks read after the first meeting. They must not read the texts and
/// counts of the Call object, because a failed rank may already have freed them.
struct alignas(kCacheLine) Post {
  CallMark mark;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

struct alignas(4096) RankMemory {
  std::array<std::array<std::byte, kSlotBytes>, 2> slots;  ///< uninitialised until the rank touches it
  std::array<Post, 2> posts;
};

}  // namespace shoal::collectives::host
