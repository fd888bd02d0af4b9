// Limits that a container or service manager sets for this process with control groups, version 1 or 2. For example,
// the process may use 4 cores and 8 GiB of a machine with 64 cores and 512 GiB. The functions read the limits from
// files. Thread-safe.
//
// Example of version 2: /proc/self/cgroup contains "0::/app", app/cpu.max contains "400000 100000", and app/memory.max
// contains "8589934592". The limits are 4 cores and 8 GiB. Version 1 has one hierarchy per controller, such as
// "4:memory:/app" with the file memory.limit_in_bytes. Both versions may be mounted at once. A parent group may have a
// smaller limit. The smallest limit of the group and its parents applies.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "devices/device.h"

namespace shoal::cpu {

struct CgroupLimits {
  std::optional<int> cores;            ///< CPU time quota in cores, rounded up
  std::optional<DeviceMemory> memory;  ///< limit and free bytes; the page cache of the group counts as free
};

/// Folders of this process's groups and of their parents. The file `self` lists the groups. The file `mounts` lists the
/// mount points.
std::vector<std::filesystem::path> cgroup_folders(const std::filesystem::path& self = "/proc/self/cgroup",
                                                  const std::filesystem::path& mounts = "/proc/self/mountinfo");

/// The smallest limits found in these folders. A limit has no value if its files do not exist.
CgroupLimits read_cgroup(std::span<const std::filesystem::path> folders);

}  // namespace shoal::cpu
