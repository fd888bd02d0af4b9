#include "devices/cpu/topology.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "devices/cpu/cgroup.h"

namespace shoal::cpu {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
/// Memory of at least this many bytes is in huge pages.
constexpr size_t kWorthHugePages = 2 * kHugePage;
/// Memory of at least this many bytes is bound to a node.
constexpr size_t kWorthBinding = 64 * 1024;

/// All data from hwloc. This object exists until the process exits, because devices of static duration may need it.
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

/// Adds the hardware threads of all OpenMP places. OMP_PROC_BIND binds the first thread to the first place, although
/// the process may use all places.
void add_places(hwloc_bitmap_t set) {
  if (omp_get_proc_bind() == omp_proc_bind_false) return;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> ids(static_cast<size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, ids.data());
    for (const int id : ids) hwloc_bitmap_set(set, static_cast<unsigned>(id));
  }
}

/// Removes cores that taskset, mpirun or a similar tool denies to this process.
void restrict_to_process(hwloc_topology_t topology) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set == nullptr) return;
  const bool known = hwloc_get_cpubind(topology, set, HWLOC_CPUBIND_PROCESS) == 0 && !hwloc_bitmap_iszero(set);
  if (known) add_places(set);
  if (known) hwloc_topology_restrict(topology, set, 0);
  hwloc_bitmap_free(set);
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
      restrict_to_process(found->topology);
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

/// Sums the values of the lines "Key:  123 kB" that have one of these keys. Words before a key, such as in "Node 0
/// MemFree:", are skipped.
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

/// Binds the pages to `node`. If binding is not permitted, the pages may come from any node.
void bind_memory(void* data, size_t size, int node) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  if (set == nullptr) return;
  hwloc_bitmap_set(set, static_cast<unsigned>(node));
  hwloc_set_area_membind(machine().topology, data, size, set, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET);
  hwloc_bitmap_free(set);
}

constexpr size_t round_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

/// Maps zeroed pages. `size` is a multiple of the small page size.
std::byte* map_pages(size_t size) {
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

/// Maps zeroed memory that begins with a huge page. The remainder after the last huge page uses small pages. `size` is
/// a multiple of the small page size.
std::byte* map_huge_pages(size_t size) {
  if (size > SIZE_MAX - kHugePage) return nullptr;
  std::byte* begin = map_pages(size + kHugePage);
  if (begin == nullptr) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t before = round_up(address, kHugePage) - address;
  std::byte* data = begin + before;
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(data + size, kHugePage - before);
  madvise(data, size, MADV_HUGEPAGE);  // if the system refuses, the pages stay small
  return data;
}

/// Whether memory of this size has its own mapping. Memory bound to a node must have its own mapping. Otherwise freed
/// pages of the heap would stay on that node, and later allocations would reuse them.
bool is_mapped(size_t size) {
  return size >= kWorthHugePages || (size >= kWorthBinding && machine_nodes().size() > 1);
}

/// Divides `count` cores among `parts` devices (see divide_cores). Returns the index of the first core of each device.
/// An additional last entry is `count`.
std::vector<size_t> first_cores(size_t count, size_t parts, std::span<const int> threads) {
  const auto weight = [&](size_t i) { return threads.size() == parts ? static_cast<size_t>(threads[i]) : 1; };
  size_t all = 0;
  for (size_t i = 0; i < parts; ++i) all += weight(i);
  std::vector<size_t> begins{0};
  size_t before = 0;
  for (size_t i = 1; i <= parts; ++i) {
    before += weight(i - 1);
    const size_t share = before * count / all;
    const bool enough = parts <= count;
    begins.push_back(enough ? std::clamp(share, begins.back() + 1, count - (parts - i)) : share);
  }
  return begins;
}

DeviceMemory machine_memory() {
  return {meminfo_bytes("/proc/meminfo", {"MemAvailable"}), meminfo_bytes("/proc/meminfo", {"MemTotal"})};
}

DeviceMemory memory_of(int node) {
  if (node < 0 || machine_nodes().size() == 1) return machine_memory();
  const std::string path = fmt::format("/sys/devices/system/node/node{}/meminfo", node);
  const DeviceMemory memory{meminfo_bytes(path, {"MemFree", "Inactive(file)", "SReclaimable"}),
                            meminfo_bytes(path, {"MemTotal"})};
  if (memory.total != 0) return memory;
  const DeviceMemory all = machine_memory();  // some containers hide /sys, so the node's own memory is unknown
  return {all.free / machine_nodes().size(), all.total / machine_nodes().size()};
}

}  // namespace

std::vector<CoreSet> divide_cores(std::span<const Node> nodes, int devices, std::span<const int> threads) {
  std::vector<CoreSet> sets;
  if (devices == 0) {
    for (const Node& node : nodes) sets.push_back({node.number, node.cores});
    return sets;
  }
  std::vector<std::pair<int, int>> cores;  // pairs of core and node
  for (const Node& node : nodes) {
    for (int core : node.cores) cores.emplace_back(core, node.number);
  }
  const size_t count = cores.size();
  const auto parts = static_cast<size_t>(devices);
  const std::vector<size_t> begins = first_cores(count, parts, threads);
  for (size_t i = 0; i < parts; ++i) {
    const size_t begin = begins[i];
    const size_t end = std::max(begins[i + 1], begin + 1);
    CoreSet set{cores[begin].second, {}, parts > count};
    for (size_t c = begin; c < end; ++c) {
      set.cores.push_back(cores[c].first);
      if (cores[c].second != set.node) set.node = -1;
    }
    sets.push_back(std::move(set));
  }
  return sets;
}

std::vector<int> hardware_threads(std::span<const int> cores) {
  std::vector<int> threads(cores.begin(), cores.end());
  hwloc_topology_t topology = machine().topology;
  if (topology == nullptr) return threads;
  for (const int number : cores) {
    hwloc_obj_t object = hwloc_get_pu_obj_by_os_index(topology, static_cast<unsigned>(number));
    object = object != nullptr ? hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, object) : nullptr;
    if (object == nullptr) continue;
    for (int pu = hwloc_bitmap_first(object->cpuset); pu >= 0; pu = hwloc_bitmap_next(object->cpuset, pu)) {
      if (pu != number) threads.push_back(pu);
    }
  }
  return threads;
}

std::vector<int> cores_of_team(const CoreSet& set, int threads) {
  const auto wanted = static_cast<size_t>(threads);
  if (!set.shared && wanted <= set.cores.size()) return set.cores;
  std::vector<int> all = hardware_threads(set.cores);
  if (!set.shared && wanted <= all.size()) return all;
  std::vector<int> cores;
  for (const Node& node : machine_nodes()) cores.insert(cores.end(), node.cores.begin(), node.cores.end());
  return hardware_threads(cores);
}

std::span<const Node> machine_nodes() {
  return machine().nodes;
}

size_t cache_bytes(std::span<const int> cores) {
  const hwloc_topology_t topology = machine().topology;
  if (topology == nullptr) return 0;
  const hwloc_bitmap_t set = hwloc_bitmap_alloc();
  for (const int core : cores) hwloc_bitmap_set(set, static_cast<unsigned>(core));
  size_t bytes = 0;
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
    if (bytes > 0) break;
    for (hwloc_obj_t cache = nullptr; (cache = hwloc_get_next_obj_by_type(topology, type, cache)) != nullptr;) {
      if (hwloc_bitmap_intersects(cache->cpuset, set) != 0) bytes += cache->attr->cache.size;
    }
  }
  hwloc_bitmap_free(set);
  return bytes;
}

namespace {

/// Reads the current limits. The process stays in its control groups, so their folders do not change.
CgroupLimits control_groups() {
  static const std::vector<std::filesystem::path> folders = cgroup_folders();
  return read_cgroup(folders);
}

}  // namespace

int usable_cores() {
  static const int cores = [] {
    int count = 0;
    for (const Node& node : machine_nodes()) count += static_cast<int>(node.cores.size());
    return std::min(count, control_groups().cores.value_or(count));
  }();
  return cores;
}

const std::string& cpu_model() {
  return machine().model;
}

DeviceMemory node_memory(int node) {
  const DeviceMemory memory = memory_of(node);
  const std::optional<DeviceMemory> allowed = control_groups().memory;
  if (!allowed) return memory;
  return {std::min(memory.free, allowed->free), std::min(memory.total, allowed->total)};
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
  const size_t alignment = is_mapped(size) ? kPage : kAlignment;
  const size_t rounded = round_up(std::max<size_t>(size, 1), alignment);
  if (rounded < size) return nullptr;  // rounding up has overflowed
  if (!is_mapped(size)) return std::aligned_alloc(alignment, rounded);
  std::byte* data = size >= kWorthHugePages ? map_huge_pages(rounded) : map_pages(rounded);
  if (data != nullptr && node >= 0 && machine_nodes().size() > 1) bind_memory(data, rounded, node);
  return data;
}

void free_memory(void* data, size_t size) noexcept {
  if (!is_mapped(size)) {
    std::free(data);
  } else if (data != nullptr) {
    munmap(data, round_up(size, kPage));
  }
}

void zero_memory(void* data, size_t size) noexcept {
  const bool released = is_mapped(size) && madvise(data, round_up(size, kPage), MADV_DONTNEED) == 0;
  if (!released) std::memset(data, 0, size);
}

}  // namespace shoal::cpu
