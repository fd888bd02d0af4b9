#include "processes/core_shares.h"

#include <hwloc.h>

namespace shoal {
namespace {

std::vector<int> threads_of(hwloc_const_cpuset_t set) {
  std::vector<int> threads;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) threads.push_back(i);
  return threads;
}

}  // namespace

std::vector<std::vector<int>> usable_threads() {
  std::vector<std::vector<int>> cores;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return cores;
  const hwloc_bitmap_t usable = hwloc_bitmap_alloc();
  if (hwloc_topology_load(topology) == 0) {
    if (hwloc_get_cpubind(topology, usable, HWLOC_CPUBIND_THREAD) == 0) hwloc_topology_restrict(topology, usable, 0);
    hwloc_obj_t core = nullptr;
    while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr) {
      cores.push_back(threads_of(core->cpuset));
    }
  }
  hwloc_bitmap_free(usable);
  hwloc_topology_destroy(topology);
  return cores;
}

std::vector<std::vector<int>> divide_threads(std::vector<std::vector<int>> cores, size_t processes) {
  if (cores.size() < processes) {
    std::vector<std::vector<int>> threads;
    for (const auto& core : cores) {
      for (const int thread : core) threads.push_back({thread});
    }
    cores = std::move(threads);
  }
  if (cores.size() < processes) return {};
  std::vector<std::vector<int>> shares(processes);
  for (size_t i = 0; i < cores.size(); ++i) {
    std::vector<int>& share = shares[i * processes / cores.size()];
    share.insert(share.end(), cores[i].begin(), cores[i].end());
  }
  return shares;
}

}  // namespace shoal
