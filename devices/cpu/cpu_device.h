// CPU devices, which form the family "CPU". By default there is one device per NUMA node. Each device uses the cores
// and memory of its node. SHOAL_CPU_DEVICES or configure() can set any other number of devices. Then the cores are
// divided among the devices. If there are more devices than cores, devices share cores. Devices may have different
// numbers of threads and slowdowns (settings.h). Each backend of a device has a worker thread with a queue and a team
// of threads (worker.h, team.h).
#pragma once

#include <string_view>
#include <vector>

#include "devices/device.h"

namespace shoal::cpu {

inline constexpr int kMaxThreads = 1024;  ///< maximum number of threads of one device
inline constexpr int kMaxDevices = 1024;

/// Number of devices set by SHOAL_CPU_DEVICES. If this variable is not set, the result is the number of values in
/// SHOAL_CPU_THREADS or SHOAL_CPU_SLOWDOWN. If neither variable lists several values, the result is 0. Throws
/// InvalidArgument for an invalid number or for lists of different lengths.
int devices_from_environment();

/// Sets the number of devices and their properties. Settings that `params` omits come from the environment or have
/// default values.
/// - "devices=4,threads=2" makes 4 devices with 2 threads each. The value 0 means the default.
/// - "threads=1+3" lists one number per device.
/// - "slowdown=1+2.5" makes the second device 2.5 times slower.
/// - "max_size=1M" limits each allocation.
/// - "memory=512M" limits the sum of all allocations of a device.
/// The limits max_size and memory are for tests and for machines that several programs share. Throws InvalidArgument if
/// a backend or buffer of the family exists. Devices of the previous configuration remain usable but are no longer
/// listed.
void configure(std::string_view params);

/// Number of threads of a backend if the parameters of init() do not set it.
int default_threads(const Device& device);

/// The cores of a device. Each core is identified by the number of one of its hardware threads.
std::vector<int> cores_of(const Device& device);

/// The NUMA node of the device's cores; -1 if unknown.
int node_of(const Device& device);

/// Sets how many processes, including this one, use the CPU devices of this host. Each process may use an equal part of
/// the memory. After this call, the devices report only this part. If this function is called several times, the
/// largest number applies.
void share_memory(int processes);

/// Makes the family. The registry calls this function at first use.
std::unique_ptr<BackendReg> make_family();

}  // namespace shoal::cpu
