// Limits that a container or service manager puts on this process (control groups, version 2): the machine may have
// 64 cores and 512 GiB while we may use 4 and 8. Read from files; thread-safe.
//
// Example: /proc/self/cgroup says "0::/app", app/cpu.max "400000 100000", app/memory.max "8589934592": 4 cores and
// 8 GiB. A parent may limit further: the smallest figure of all levels holds.
#pragma once

#include <filesystem>
#include <optional>

#include "devices/device.h"

namespace shoal::cpu {

struct CgroupLimits {
  std::optional<int> cores;            ///< quota of time in cores, rounded up
  std::optional<DeviceMemory> memory;  ///< page cache of the group counts as free
};

/// No limits where the files are not there.
CgroupLimits read_cgroup(const std::filesystem::path& self = "/proc/self/cgroup",
                         const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace shoal::cpu
