// CPU devices, the family "CPU": as many as there are NUMA nodes, each on the cores and in the memory of its node, or
// any number that SHOAL_CPU_DEVICES or configure() asks for; these share the cores evenly, and there may be more of
// them than cores. Each backend of a device has a worker thread with a queue and a team of threads (worker.h, team.h).
#pragma once

#include <string_view>

#include "devices/device.h"

namespace shoal::cpu {

inline constexpr int kMaxThreads = 1024;  ///< of one device
inline constexpr int kMaxDevices = 1024;

/// What SHOAL_CPU_DEVICES asks for; 0 where it is not set, empty or 0. Throws InvalidArgument for anything else that is
/// no count of devices.
int devices_from_environment();

/// How many devices, and how many threads each ("devices=4,threads=2", 0 = default), with limits for tests and for
/// sharing a machine: "max_size=1M" of one allocation, "memory=512M" of all allocations of a device. What is not
/// named is the default again. Call before first use of the family, or again while no backend or buffer of it
/// exists; throws InvalidArgument otherwise. Devices of before keep working but are in no list any more.
void configure(std::string_view params);

/// Threads a backend gets when init() names none.
int default_threads(const Device& device);

/// The family; made by the registry at first use.
std::unique_ptr<BackendReg> make_family();

}  // namespace shoal::cpu
