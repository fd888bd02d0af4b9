// Arrivals: the number of calls that each rank of a communicator has come to, so that a rank that waits too long can
// name the missing ones. Ranks on other computers are unknown. Thread-safe, across the processes of a node, too.
//
//   ranks 0 and 1 on node a, 2 on node b; calls 0 to 4 are done, 5 is queued by all but 1:
//   on a   6 5 ?   rank 0, which waits, is not alone in having come to 5; the first that is missing there is 1
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "devices/device.h"
#include "processes/process_group.h"
#include "processes/remote_device.h"

namespace shoal::collectives::nccl {

class Arrivals {
 public:
  /// `group`: of a communicator over several processes, which is collective and throws CommError; nullptr for one.
  Arrivals(std::span<Device* const> devices, ProcessGroup* group) : is_near_(devices.size(), true) {
    if (group == nullptr) {
      own_ = std::make_unique<std::atomic<uint64_t>[]>(devices.size());
      counts_ = own_.get();
      return;
    }
    shared_ = group->share(sizeof(uint64_t) * devices.size());
    counts_ = std::launder(reinterpret_cast<std::atomic<uint64_t>*>(shared_.data()));  // zeroed
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      is_near_[rank] = group->node(process_of(*devices[rank], group->own())) == group->node(group->own());
    }
  }

  std::atomic<uint64_t>& of(int rank) const { return counts_[rank]; }
  /// Ranks of this node that have come to the fewest calls, if these are fewer than `own`.
  std::vector<int> behind(uint64_t own) const {
    std::vector<int> found;
    uint64_t fewest = own;
    for (const int rank : ranks(true)) {
      const uint64_t count = of(rank);
      if (count >= own || count > fewest) continue;
      if (count < fewest) found.clear();
      fewest = count;
      found.push_back(rank);
    }
    return found;
  }
  /// Is the rank the first of this node that has come that far?
  bool is_first(int rank, uint64_t own) const {
    for (const int other : ranks(true)) {
      if (other < rank && of(other) >= own) return false;
    }
    return true;
  }
  /// Ranks of this node, or of others.
  std::vector<int> ranks(bool near) const {
    std::vector<int> found;
    for (size_t rank = 0; rank < is_near_.size(); ++rank) {
      if (is_near_[rank] == near) found.push_back(static_cast<int>(rank));
    }
    return found;
  }

 private:
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  std::vector<bool> is_near_;
  SharedMemory shared_;
  std::unique_ptr<std::atomic<uint64_t>[]> own_;
  std::atomic<uint64_t>* counts_ = nullptr;  ///< in own_ or in shared_
};

}  // namespace shoal::collectives::nccl
