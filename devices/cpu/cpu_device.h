// CPU devices, the family "CPU". By default there is one device per NUMA node, which uses the cores and memory of its
// node. SHOAL_CPU_DEVICES or configure() can set any other number. The cores are then divided among the devices; if
// there are more devices than cores, devices share cores. Devices may differ in threads and slowdown (settings.h). Each
// backend of a device has a worker thread with a queue and a team of threads (worker.h, team.h).
#pragma once

#include <string_view>
#include <vector>

#include "devices/device.h"

namespace shoal::cpu {

inline constexpr int kMaxThreads = 1024;  ///< maximum number of threads of one device
inline constexpr int kMaxDevices = 1024;

/// Number of devices set by SHOAL_CPU_DEVICES. If that is not set: the length of a list with several numbers in
/// SHOAL_CPU_THREADS or SHOAL_CPU_SLOWDOWN, or 0 if there is no such list. Throws InvalidArgument for an invalid number
/// or lists of different lengths.
int devices_from_environment();

/// Sets the number of devices and their properties. "devices=4,threads=2" makes 4 devices with 2 threads each; 0 means
/// the default. "threads=1+3" lists one number per device. So does "slowdown=1+2.5", which makes the second device 2.5
/// times slower. "max_size=1M" limits one allocation, and "memory=512M" all allocations of a device, for tests and for
/// sharing a machine.
///
/// Settings that are not given come from the environment or are the default. Call this before the first use of the
/// family, or while no backend or buffer of it exists; otherwise it throws InvalidArgument. Devices of the previous
/// configuration keep working but are no longer listed.
void configure(std::string_view params);

/// Number of threads of a backend if init() does not set it.
int default_threads(const Device& device);

/// The cores of a device. Each core is given as the number of one of its hardware threads.
std::vector<int> cores_of(const Device& device);

/// The NUMA node of the device's cores; -1 if unknown.
int node_of(const Device& device);

/// Sets how many processes on this host, including this one, use its CPU devices. Each process has an equal share of
/// the memory, and its devices report only that share from now on. The largest number of all calls applies.
void share_memory(int processes);

/// The family. The registry calls this at first use.
std::unique_ptr<BackendReg> make_family();

}  // namespace shoal::cpu
