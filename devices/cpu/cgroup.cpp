#include "devices/cpu/cgroup.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace shoal::cpu {
namespace {

namespace fs = std::filesystem;

/// Returns the first number in a file. Returns nullopt if the file is missing or begins with other text, such as "max".
std::optional<int64_t> number_in(const fs::path& path) {
  int64_t value = 0;
  std::ifstream file(path);
  return file >> value ? std::optional(value) : std::nullopt;
}

/// Microseconds of CPU time per period, summed over all cores. A quota of -1 or "max" means no limit.
struct Quota {
  int64_t quota = -1;
  int64_t period = 0;
};

Quota quota_of(const fs::path& group) {
  Quota found;
  if (std::ifstream file(group / "cpu.max"); file >> found.quota >> found.period) return found;
  return {number_in(group / "cpu.cfs_quota_us").value_or(-1), number_in(group / "cpu.cfs_period_us").value_or(0)};
}

std::optional<int> cores_of(const fs::path& group) {
  const auto [quota, period] = quota_of(group);
  if (quota < 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::max<int64_t>(1, (quota + period - 1) / period));
}

/// Names of the files that contain the memory limit and the used memory. `page_cache` contains keys of the file
/// memory.stat. The values of these keys include child groups.
struct MemoryFiles {
  const char* limit;
  const char* current;
  std::array<std::string_view, 2> page_cache;  ///< keys of the page cache; the kernel reclaims this memory before it
                                               ///< refuses an allocation
};
constexpr MemoryFiles kMemoryFiles[] = {
    {"memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}},
};

uint64_t page_cache_of(const fs::path& group, const MemoryFiles& files) {
  std::ifstream file(group / "memory.stat");
  std::string key;
  uint64_t value = 0;
  uint64_t sum = 0;
  while (file >> key >> value) {
    if (std::find(files.page_cache.begin(), files.page_cache.end(), key) != files.page_cache.end()) sum += value;
  }
  return sum;
}

std::optional<DeviceMemory> memory_of(const fs::path& group) {
  constexpr int64_t kUnlimited = int64_t{1} << 62;  // version 1 writes a huge number for "unlimited"
  for (const MemoryFiles& files : kMemoryFiles) {
    const auto limit = number_in(group / files.limit);
    const auto current = number_in(group / files.current);
    if (!limit || !current || *limit < 0 || *limit >= kUnlimited) continue;
    const auto all = static_cast<uint64_t>(*limit), taken = static_cast<uint64_t>(*current);
    const uint64_t used = taken - std::min(taken, page_cache_of(group, files));
    return DeviceMemory{all - std::min(all, used), all};
  }
  return std::nullopt;
}

/// Whether a list such as "cpu,cpuacct" contains the controller.
bool names(const std::string& list, const std::string& controller) {
  return ("," + list + ",").find("," + controller + ",") != std::string::npos;
}

/// Returns this process's group for a controller. For example, the line "4:memory:/app/web" gives the group /app/web
/// for the controller "memory". For version 2, the controller is "", and the line "0::/app" gives the group /app.
std::optional<fs::path> own_group(const fs::path& self, const std::string& controller) {
  std::ifstream file(self);
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? line.starts_with("0::") : names(list, controller))
      return fs::path(line.substr(second + 1));
  }
  return std::nullopt;
}

/// A mount of a controller's hierarchy. The folder `point` contains the files of the group `root`.
struct Mount {
  fs::path root;
  fs::path point;
};

/// mountinfo writes blanks, tabs, line ends and backslashes in paths as octal codes, such as \040.
std::string unescaped(std::string_view text) {
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    const char* digits = text.data() + i + 1;
    const bool is_code =
        text[i] == '\\' && text.size() - i > 3 && std::from_chars(digits, digits + 3, code, 8).ptr == digits + 3;
    path += is_code ? static_cast<char>(code) : text[i];
    if (is_code) i += 3;
  }
  return path;
}

/// Finds the mounts of a controller's hierarchy. For example, the line "35 31 0:32 /docker/1 /sys/fs/cgroup/memory
/// ro,nosuid shared:9 - cgroup cgroup rw,memory" describes a mount of /docker/1 and its child groups. Several mounts
/// may contain the same hierarchy, and one mount may hide another mount.
std::vector<Mount> find_mounts(const fs::path& mounts, const std::string& controller) {
  std::vector<Mount> found;
  std::ifstream file(mounts);
  for (std::string line; std::getline(file, line);) {
    const size_t middle = line.find(" - ");
    if (middle == std::string::npos) continue;
    std::istringstream begin(line), end(line.substr(middle + 3));
    std::string number, parent, device, root, point, type, source, options;
    begin >> number >> parent >> device >> root >> point;
    end >> type >> source >> options;
    const bool is_it = controller.empty() ? type == "cgroup2" : type == "cgroup" && names(options, controller);
    if (is_it) found.push_back({unescaped(root), unescaped(point)});
  }
  return found;
}

/// Adds the folders of a group and of its parents. Omits folders that are not visible below the mount.
void add_folders(const fs::path& group, const Mount& mount, std::vector<fs::path>& folders) {
  fs::path below = group.lexically_normal().lexically_relative(mount.root.lexically_normal());
  // In a container, the path of the group may be valid only on the host. In this case, the root of the mount is used.
  if (below.empty() || *below.begin() == ".." || below == ".") below.clear();
  for (;; below = below.parent_path()) {
    folders.push_back(mount.point / below);
    if (below.empty()) return;
  }
}

}  // namespace

std::vector<fs::path> cgroup_folders(const fs::path& self, const fs::path& mounts) {
  std::vector<fs::path> folders;
  for (const char* controller : {"", "cpu", "memory"}) {
    const std::optional<fs::path> own = own_group(self, controller);
    if (!own) continue;
    for (const Mount& mount : find_mounts(mounts, controller)) add_folders(*own, mount, folders);
  }
  return folders;
}

CgroupLimits read_cgroup(std::span<const fs::path> folders) {
  CgroupLimits limits;
  for (const fs::path& group : folders) {
    if (const auto cores = cores_of(group)) limits.cores = std::min(limits.cores.value_or(*cores), *cores);
    if (const auto memory = memory_of(group)) {
      DeviceMemory& least = limits.memory ? *limits.memory : limits.memory.emplace(*memory);
      least.free = std::min(least.free, memory->free);
      least.total = std::min(least.total, memory->total);
    }
  }
  return limits;
}

}  // namespace shoal::cpu
