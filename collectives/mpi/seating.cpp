#include "collectives/mpi/seating.h"

#include <algorithm>

#include "base/error.h"

namespace shoal::collectives::mpi {

Seating::Seating(std::span<Device* const> devices, const ProcessGroup& group) : own_process(group.own()) {
  std::vector<int> computers;  // the group's numbers of those with ranks
  for (const Device* device : devices) {
    process.push_back(shoal::process_of(*device, group.own()));
    names.push_back(fmt::format("{} on {}", common_name(*device, &group), group.host(process.back())));
    computers.push_back(group.node(process.back()));
  }
  std::vector<int> distinct = computers;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  members.resize(distinct.size());
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto place = std::lower_bound(distinct.begin(), distinct.end(), computers[static_cast<size_t>(rank)]);
    node.push_back(static_cast<int>(place - distinct.begin()));
    std::vector<int>& there = members[static_cast<size_t>(node.back())];
    seat.push_back(static_cast<int>(there.size()));
    there.push_back(rank);
  }
  const auto own = std::find(distinct.begin(), distinct.end(), group.node(group.own()));
  if (own != distinct.end()) own_node = static_cast<int>(own - distinct.begin());
}

}  // namespace shoal::collectives::mpi
