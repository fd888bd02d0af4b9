// CallMark: the data that ranks compare to check that they queued the same collective. CallMark is plain data that can
// be stored in shared memory and sent in messages.
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

/// The error message for `call` when the marks of two ranks differ.
std::string disagreement(const Call& call, int rank, const CallMark& mark, int other, const CallMark& others_mark);

}  // namespace shoal::collectives::host
