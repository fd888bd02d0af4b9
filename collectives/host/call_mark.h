// CallMark: by what ranks see whether they have queued the same collective. Plain data, for memory and messages that
// other ranks read.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/communicator.h"

namespace shoal::collectives::host {

struct CallMark {
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kF32;
  int root = 0;
  int64_t count = 0;
  uint64_t digest = 0, whole = 0;
  bool operator==(const CallMark&) const = default;
};

CallMark mark_of(const Call& call);

/// Why `call` cannot go on: two ranks' marks differ.
std::string disagreement(const Call& call, int rank, const CallMark& mark, int other, const CallMark& others_mark);

}  // namespace shoal::collectives::host
