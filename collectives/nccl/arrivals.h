// Arrivals: at how many calls each rank of a communicator has come, so that who waits too long can say for whom. Of
// ranks on other computers that is not known. Thread-safe, across the processes of a node, too.
//
//   ranks 0 and 1 on node a, 2 on node b; calls 0 to 4 are done, 5 is queued by all but 1:
//   on a   6 5 ?   rank 0, which waits, is not alone in having come to 5; the first that is missing there is 1
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "devices/device.h"
#include "processes/process_group.h"
#include "processes/shared_memory.h"

namespace shoal::collectives::nccl {

class Arrivals {
 public:
  /// Of a communicator within this process.
  explicit Arrivals(int ranks);
  /// Of one over several processes. Collective; throws CommError.
  Arrivals(std::span<Device* const> devices, ProcessGroup& group);

  int ranks() const { return static_cast<int>(is_near_.size()); }
  std::atomic<uint64_t>& of(int rank) const { return counts_[rank]; }
  bool is_near(int rank) const { return is_near_[static_cast<size_t>(rank)]; }
  /// Ranks that have come to fewer calls than `own`, of those the ones with the fewest; empty: none, as far as is
  /// known.
  std::vector<int> behind(uint64_t own) const;
  /// Ranks of which nothing is known here.
  std::vector<int> far() const;
  /// Seen by all processes of the node, zero at first.
  std::atomic<uint32_t>& speaks() const { return *speaks_; }

 private:
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

  std::vector<bool> is_near_;
  SharedMemory shared_;
  std::unique_ptr<std::atomic<uint64_t>[]> own_;
  std::atomic<uint64_t>* counts_ = nullptr;  ///< in own_ or in shared_
  std::atomic<uint32_t>* speaks_ = nullptr;  ///< in shared_
};

}  // namespace shoal::collectives::nccl
