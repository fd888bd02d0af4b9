#include "devices/cpu/topology.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace shoal::cpu {
namespace {

constexpr size_t kAlignment = 64;

/// Everything that hwloc told us; lives until the process ends, as devices of static duration may need it.
struct Machine {
  hwloc_topology_t topology = nullptr;
  std::vector<Node> nodes;
  std::string model = "CPU";
};

std::vector<int> cores_in(hwloc_topology_t topology, hwloc_const_cpuset_t cpuset) {
  std::vector<int> cores;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_inside_cpuset_by_type(topology, cpuset, HWLOC_OBJ_CORE, core)) != nullptr) {
    if (const int first = hwloc_bitmap_first(core->cpuset); first >= 0) cores.push_back(first);
  }
  if (!cores.empty()) return cores;
  for (int pu = hwloc_bitmap_first(cpuset); pu >= 0; pu = hwloc_bitmap_next(cpuset, pu)) cores.push_back(pu);
  return cores;
}

std::string model_of(hwloc_topology_t topology) {
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  for (const hwloc_obj_t object : {package, hwloc_get_root_obj(topology)}) {
    const char* model = object != nullptr ? hwloc_obj_get_info_by_name(object, "CPUModel") : nullptr;
    if (model != nullptr) return model;
  }
  return "CPU";
}

const Machine& machine() {
  static const Machine& instance = *[] {
    auto* found = new Machine;
    if (hwloc_topology_init(&found->topology) != 0 || hwloc_topology_load(found->topology) != 0) {
      found->topology = nullptr;
    } else {
      hwloc_obj_t node = nullptr;
      while ((node = hwloc_get_next_obj_by_type(found->topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
        std::vector<int> cores = cores_in(found->topology, node->cpuset);
        if (!cores.empty()) found->nodes.push_back({static_cast<int>(node->os_index), std::move(cores)});
      }
      found->model = model_of(found->topology);
    }
    if (found->nodes.empty()) {
      Node all;
      const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
      for (int core = 0; core < count; ++core) all.cores.push_back(core);
      found->nodes.push_back(std::move(all));
    }
    return found;
  }();
  return instance;
}

/// Sums "Key:  123 kB" lines; `skip` words come before the key ("Node 0 MemFree:").
size_t meminfo_bytes(const std::string& path, std::initializer_list<std::string_view> keys) {
  std::ifstream file(path);
  std::string word;
  std::string key;
  size_t sum = 0;
  while (file >> word) {
    if (word.back() != ':') continue;
    key.assign(word, 0, word.size() - 1);
    size_t kibibytes = 0;
    if (!(file >> kibibytes)) break;
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) sum += kibibytes * 1024;
  }
  return sum;
}

}  // namespace

std::vector<CoreSet> divide_cores(std::span<const Node> nodes, int devices) {
  std::vector<CoreSet> sets;
  if (devices == 0) {
    for (const Node& node : nodes) sets.push_back({node.number, node.cores});
    return sets;
  }
  std::vector<std::pair<int, int>> cores;  // (core, node)
  for (const Node& node : nodes) {
    for (int core : node.cores) cores.emplace_back(core, node.number);
  }
  const size_t count = cores.size();
  const auto parts = static_cast<size_t>(devices);
  for (size_t i = 0; i < parts; ++i) {
    const size_t begin = i * count / parts;
    const size_t end = std::max((i + 1) * count / parts, begin + 1);
    CoreSet set{cores[begin].second, {}, parts > count};
    for (size_t c = begin; c < end; ++c) {
      set.cores.push_back(cores[c].first);
      if (cores[c].second != set.node) set.node = -1;
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

std::span<const Node> machine_nodes() {
  return machine().nodes;
}

int machine_cores() {
  size_t count = 0;
  for (const Node& node : machine_nodes()) count += node.cores.size();
  return static_cast<int>(count);
}

const std::string& cpu_model() {
  return machine().model;
}

DeviceMemory node_memory(int node) {
  if (node < 0 || machine_nodes().size() == 1) {
    return {meminfo_bytes("/proc/meminfo", {"MemAvailable"}), meminfo_bytes("/proc/meminfo", {"MemTotal"})};
  }
  const std::string path = fmt::format("/sys/devices/system/node/node{}/meminfo", node);
  return {meminfo_bytes(path, {"MemFree", "Inactive(file)", "SReclaimable"}), meminfo_bytes(path, {"MemTotal"})};
}

bool bind_thread(std::span<const int> cores) noexcept {
  if (machine().topology == nullptr) return false;
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set == nullptr) return false;
  for (int core : cores) hwloc_bitmap_set(set, static_cast<unsigned>(core));
  const bool bound = hwloc_set_cpubind(machine().topology, set, HWLOC_CPUBIND_THREAD) == 0;
  hwloc_bitmap_free(set);
  return bound;
}

void* allocate_on_node(size_t size, int node) noexcept {
  size = (std::max<size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (size == 0) return nullptr;  // rounding up wrapped around
  if (node < 0 || machine_nodes().size() == 1) return std::aligned_alloc(kAlignment, size);
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set == nullptr) return nullptr;
  hwloc_bitmap_set(set, static_cast<unsigned>(node));
  // Falls back to unbound pages by itself when binding is not permitted.
  void* data = hwloc_alloc_membind(machine().topology, size, set, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET);
  hwloc_bitmap_free(set);
  return data;
}

void free_on_node(void* data, size_t size, int node) noexcept {
  if (data == nullptr) return;
  size = (std::max<size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (node < 0 || machine_nodes().size() == 1) {
    std::free(data);
  } else {
    hwloc_free(machine().topology, data, size);
  }
}

}  // namespace shoal::cpu
