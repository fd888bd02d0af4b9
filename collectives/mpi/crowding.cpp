#include "collectives/mpi/crowding.h"

#include <algorithm>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "devices/cpu/topology.h"
#include "devices/cpu/waiting.h"

namespace shoal::collectives::mpi {

// Processes may be bound to cores of their own or share all of them; a quota holds for all together, as far as one can
// tell.
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
