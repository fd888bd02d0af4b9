#include "devices/cpu/cgroup.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace shoal::cpu {
namespace {

namespace fs = std::filesystem;

/// The first number of a file; nullopt for "max", other text or no file.
std::optional<uint64_t> number_in(const fs::path& path) {
  uint64_t value = 0;
  std::ifstream file(path);
  return file >> value ? std::optional(value) : std::nullopt;
}

std::optional<int> cores_of(const fs::path& group) {
  uint64_t quota = 0;
  uint64_t period = 0;
  std::ifstream file(group / "cpu.max");
  if (!(file >> quota >> period) || period == 0) return std::nullopt;
  return static_cast<int>(std::max<uint64_t>(1, (quota + period - 1) / period));
}

/// What the kernel takes back before it refuses memory.
uint64_t page_cache_of(const fs::path& group) {
  std::ifstream file(group / "memory.stat");
  std::string key;
  uint64_t value = 0;
  uint64_t sum = 0;
  while (file >> key >> value) {
    if (key == "inactive_file" || key == "active_file") sum += value;
  }
  return sum;
}

std::optional<DeviceMemory> memory_of(const fs::path& group) {
  const auto limit = number_in(group / "memory.max");
  const auto current = number_in(group / "memory.current");
  if (!limit || !current) return std::nullopt;
  const uint64_t used = *current - std::min(*current, page_cache_of(group));
  return DeviceMemory{*limit - std::min(*limit, used), *limit};
}

/// "0::/app/web" -> "app/web"; "" when the process is in no group of version 2.
fs::path own_group(const fs::path& self) {
  std::ifstream file(self);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return fs::path(line.substr(4)).lexically_normal();
  }
  return {};
}

}  // namespace

CgroupLimits read_cgroup(const fs::path& self, const fs::path& root) {
  CgroupLimits limits;
  for (fs::path group = own_group(self);; group = group.parent_path()) {
    if (const auto cores = cores_of(root / group)) limits.cores = std::min(limits.cores.value_or(*cores), *cores);
    if (const auto memory = memory_of(root / group)) {
      DeviceMemory& least = limits.memory ? *limits.memory : limits.memory.emplace(*memory);
      least.free = std::min(least.free, memory->free);
      least.total = std::min(least.total, memory->total);
    }
    if (group.empty()) return limits;
  }
}

}  // namespace shoal::cpu
