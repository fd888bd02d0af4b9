#include "collectives/nccl/arrivals.h"

#include <algorithm>
#include <new>

#include "processes/remote_device.h"

namespace shoal::collectives::nccl {

Arrivals::Arrivals(int ranks)
    : is_near_(static_cast<size_t>(ranks), true),
      own_(std::make_unique<std::atomic<uint64_t>[]>(static_cast<size_t>(ranks))),
      counts_(own_.get()) {}

// The memory is zeroed, which is what these atomics are at first.
Arrivals::Arrivals(std::span<Device* const> devices, ProcessGroup& group)
    : shared_(group.share(sizeof(uint64_t) * (devices.size() + 1))),
      counts_(std::launder(reinterpret_cast<std::atomic<uint64_t>*>(shared_.data()))),
      speaks_(reinterpret_cast<std::atomic<uint32_t>*>(shared_.data() + sizeof(uint64_t) * devices.size())) {
  const int node = group.node(group.own());
  for (const Device* device : devices) is_near_.push_back(group.node(process_of(*device, group.own())) == node);
}

std::vector<int> Arrivals::behind(uint64_t own) const {
  std::vector<int> found;
  uint64_t fewest = own;
  for (int rank = 0; rank < ranks(); ++rank) {
    const uint64_t count = of(rank);
    if (!is_near(rank) || count >= own || count > fewest) continue;
    if (count < fewest) found.clear();
    fewest = count;
    found.push_back(rank);
  }
  return found;
}

std::vector<int> Arrivals::far() const {
  std::vector<int> found;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!is_near(rank)) found.push_back(rank);
  }
  return found;
}

}  // namespace shoal::collectives::nccl
