// RankMemory: what a host communicator keeps in memory for each rank, one block per rank, first touched by the
// rank's own thread so that it is local to it. Everything is there twice and used in turn, call after call (the
// call's parity): a rank that is one call ahead writes the other half. It cannot be two ahead, since every
// collective has at least one meeting of all ranks.
#pragma once

#include <array>
#include <cstddef>

#include "collectives/host/call_mark.h"
#include "collectives/host/rendezvous.h"

namespace shoal::collectives::host {

/// A message up to this size goes through the staging slots with one meeting; a larger one is read where it lies,
/// with two. On 2 cores the copy costs more than the second meeting from 2 to 4 KiB on (collectives_bench), with more
/// ranks than cores from 16 KiB on.
inline constexpr size_t kSlotBytes = 4 * 1024;

/// What a rank tells the others about its call, to be read by them after the first meeting. The texts and counts
/// of the call itself are not for others: a rank that failed may have gone on and dropped them.
struct alignas(kCacheLine) Post {
  CallMark mark;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

struct alignas(4096) RankMemory {
  std::array<std::array<std::byte, kSlotBytes>, 2> slots;  ///< left uninitialised until the rank touches it
  std::array<Post, 2> posts;
};

}  // namespace shoal::collectives::host
