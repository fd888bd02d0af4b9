// Limits that a container or service manager puts on this process (control groups of versions 1 and 2): the machine may
// have 64 cores and 512 GiB while we may use 4 and 8. Read from files; thread-safe.
//
// Example of version 2: /proc/self/cgroup says "0::/app", app/cpu.max "400000 100000", app/memory.max "8589934592": 4
// cores and 8 GiB. Version 1 has a hierarchy for each controller, such as "4:memory:/app" with
// memory.limit_in_bytes. Both may be there at once. A parent may limit further: the smallest figure of all levels
// holds.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "devices/device.h"

namespace shoal::cpu {

struct CgroupLimits {
  std::optional<int> cores;            ///< quota of time in cores, rounded up
  std::optional<DeviceMemory> memory;  ///< page cache of the group counts as free
};

/// Folders of the groups of this process and of their parents. `self`: its groups; `mounts`: where folders are mounted.
std::vector<std::filesystem::path> cgroup_folders(const std::filesystem::path& self = "/proc/self/cgroup",
                                                  const std::filesystem::path& mounts = "/proc/self/mountinfo");

/// The smallest limits of these folders; none if the files are not there.
CgroupLimits read_cgroup(std::span<const std::filesystem::path> folders);

}  // namespace shoal::cpu
