#include "processes/core_shares.h"

#include <hwloc.h>

#include <algorithm>

namespace shoal {
namespace {

std::vector<int> threads_of(hwloc_const_cpuset_t set) {
  std::vector<int> threads;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) threads.push_back(i);
  return threads;
}

}  // namespace

std::vector<UsableCore> usable_cores() {
  std::vector<UsableCore> cores;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return cores;
  const hwloc_bitmap_t usable = hwloc_bitmap_alloc();
  if (hwloc_topology_load(topology) == 0) {
    if (hwloc_get_cpubind(topology, usable, HWLOC_CPUBIND_THREAD) == 0) hwloc_topology_restrict(topology, usable, 0);
    const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;  // virtual machines may hide cores
    const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    hwloc_obj_t core = nullptr;
    while ((core = hwloc_get_next_obj_by_type(topology, type, core)) != nullptr) {
      cores.push_back({threads_of(core->cpuset), hwloc_bitmap_first(core->nodeset)});
    }
  }
  hwloc_bitmap_free(usable);
  hwloc_topology_destroy(topology);
  return cores;
}

std::vector<std::vector<int>> divide_threads(std::vector<UsableCore> cores, size_t processes) {
  if (cores.size() < processes) {
    std::vector<UsableCore> threads;
    for (const UsableCore& core : cores) {
      for (const int thread : core.threads) threads.push_back({{thread}, core.node});
    }
    cores = std::move(threads);
  }
  if (cores.size() < processes) return {};
  const auto begin_of = [&](size_t share) {
    const size_t even = share * cores.size() / processes;
    for (size_t distance = 0; 4 * distance * processes <= cores.size(); ++distance) {
      for (const size_t at : {even - std::min(distance, even), even + distance}) {
        if (at > 0 && at < cores.size() && cores[at].node != cores[at - 1].node) return at;
      }
    }
    return even;
  };
  std::vector<std::vector<int>> shares(processes);
  size_t next = 0;
  for (size_t i = 0; i < processes; ++i) {
    for (const size_t end = i + 1 < processes ? begin_of(i + 1) : cores.size(); next < end; ++next) {
      shares[i].insert(shares[i].end(), cores[next].threads.begin(), cores[next].threads.end());
    }
  }
  return shares;
}

}  // namespace shoal
