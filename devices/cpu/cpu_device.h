// CPU devices, the family "CPU": as many as there are NUMA nodes, each on the cores and in the memory of its node, or
// any number that SHOAL_CPU_DEVICES or configure() asks for; these share the cores, and there may be more of them than
// cores. They may have unlike numbers of threads and be slowed (settings.h). Each backend of a device has a worker
// thread with a queue and a team of threads (worker.h, team.h).
#pragma once

#include <string_view>
#include <vector>

#include "devices/device.h"

namespace shoal::cpu {

inline constexpr int kMaxThreads = 1024;  ///< of one device
inline constexpr int kMaxDevices = 1024;

/// What SHOAL_CPU_DEVICES asks for, or else a list of several numbers in SHOAL_CPU_THREADS or SHOAL_CPU_SLOWDOWN; 0
/// where none is set. Throws InvalidArgument for what is no such number, and for lists of another length.
int devices_from_environment();

/// How many devices, how many threads each ("devices=4,threads=2", 0 = default; "threads=1+3": one number for each) and
/// how many times slower than they could be ("slowdown=1+2.5"), with limits for tests and for sharing a machine:
/// "max_size=1M" of one allocation, "memory=512M" of all allocations of a device. What is not named is what the
/// environment says, or the default. Call before first use of the family, or again while no backend or buffer of it
/// exists; throws InvalidArgument otherwise. Devices of before keep working but are in no list any more.
void configure(std::string_view params);

/// Threads a backend gets when init() names none.
int default_threads(const Device& device);

/// Numbers of the cores that a device has, one hardware thread of each.
std::vector<int> cores_of(const Device& device);

/// The NUMA node that they belong to; -1: not known.
int node_of(const Device& device);

/// Processes of this computer that run on its CPU devices, this one among them: each has an equal part of its memory,
/// which is what its devices report from now on. The largest number of all calls counts.
void share_memory(int processes);

/// The family; made by the registry at first use.
std::unique_ptr<BackendReg> make_family();

}  // namespace shoal::cpu
