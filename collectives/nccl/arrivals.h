// Arrivals: the number of calls that each rank of a communicator has begun. With these counts, a rank that waits too
// long can name the missing ranks. The counts of ranks on other computers are unknown. All functions are thread-safe,
// also if the threads belong to different processes of a node.
//
//   ranks 0 and 1 on node a, rank 2 on node b; calls 0 to 4 are done; ranks 0 and 2 have queued call 5, rank 1 has not:
//   on node a the counts are 6 5 ?   rank 0 waits for rank 1; the first call that rank 1 has not queued is 5
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
  /// `group`: nullptr for one process. With several processes, all processes must call the constructor, which may throw
  /// CommError.
  Arrivals(std::span<Device* const> devices, ProcessGroup* group) : is_near_(devices.size(), true) {
    if (group == nullptr) {
      own_ = std::make_unique<std::atomic<uint64_t>[]>(devices.size());
      counts_ = own_.get();
      return;
    }
    shared_ = group->share(sizeof(uint64_t) * devices.size());
    counts_ = std::launder(reinterpret_cast<std::atomic<uint64_t>*>(shared_.data()));  // share() returns zeroed memory
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      is_near_[rank] = group->node(process_of(*devices[rank], group->own())) == group->node(group->own());
    }
  }

  std::atomic<uint64_t>& of(int rank) const { return counts_[rank]; }
  /// The ranks of this node that have begun the fewest calls. Empty if all ranks of this node have begun at least `own`
  /// calls.
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
  /// Whether `rank` is the first rank of this node that has begun at least `own` calls.
  bool is_first(int rank, uint64_t own) const {
    for (const int other : ranks(true)) {
      if (other < rank && of(other) >= own) return false;
    }
    return true;
  }
  /// Returns the ranks of this node if `near` is true, and the ranks of all other nodes otherwise.
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
  std::atomic<uint64_t>* counts_ = nullptr;  ///< points into own_ or shared_
};

}  // namespace shoal::collectives::nccl
