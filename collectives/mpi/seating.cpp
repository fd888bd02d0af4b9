#include "collectives/mpi/seating.h"

#include <algorithm>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "devices/cpu/topology.h"
#include "devices/cpu/waiting.h"

namespace shoal::collectives::mpi {

Seating::Seating(std::span<Device* const> devices, const ProcessGroup& group) : own_process(group.own()) {
  std::vector<int> computers;  // the computers of the ranks, as node numbers of the group
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

// Each process may be bound to its own cores, or all processes may share all cores. shoal assumes that a CPU quota
// applies to all processes together.
bool is_crowded(ProcessGroup& group, int own_ranks) {
  std::vector<int> own_cores;
  for (const cpu::Node& node : cpu::machine_nodes())
    own_cores.insert(own_cores.end(), node.cores.begin(), node.cores.end());
  const int threads = std::max(own_ranks, cpu::computing_thread_count());
  const nlohmann::json own{{"threads", threads}, {"cores", own_cores}, {"usable", cpu::usable_cores()}};
  const std::vector<std::string> told = group.gather(own.dump(), "threads");
  std::set<int> cores;
  size_t needed = 0, quota = std::numeric_limits<size_t>::max();
  for (const int process : group.processes_of(group.node(group.own()))) {
    const nlohmann::json its = nlohmann::json::parse(told[static_cast<size_t>(process)]);
    const auto its_cores = its["cores"].get<std::vector<int>>();
    const auto usable = its["usable"].get<size_t>();
    needed += its["threads"].get<size_t>();
    cores.insert(its_cores.begin(), its_cores.end());
    if (usable < its_cores.size()) quota = std::min(quota, usable);
  }
  return needed > std::min(cores.size(), quota);
}

}  // namespace shoal::collectives::mpi
