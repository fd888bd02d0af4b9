// Finds devices by the names that users give.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"

namespace shoal::tools {

/// Splits a list of devices: "CPU0, cpu1+CPU2" -> {"CPU0", "cpu1", "CPU2"}. Throws InvalidArgument for an empty name
/// and for a name that occurs twice. The comparison of names ignores upper and lower case.
std::vector<std::string> split_device_names(std::string_view text);

/// Number of devices in each group: "CPU0+CPU1,CPU2" -> {2, 1}. Devices joined by + act as one device.
std::vector<int> device_group_sizes(std::string_view text);

/// Whether the text is "all" in upper or lower case. "all" stands for all_devices().
bool names_all(std::string_view text);
/// Names of all GPUs of `listed`, such as "CUDA0,CUDA1". Without GPUs, returns all integrated GPUs. Without integrated
/// GPUs, returns all CPU devices. The result never contains both GPUs and CPUs, because a GPU that waits for a
/// slower CPU gains nothing.
std::string all_of(std::span<Device* const> listed);
/// The default devices of a command: all GPUs of `listed`, or else all integrated GPUs, or else CPU0.
std::string default_of(std::span<Device* const> listed);
/// all_of() and default_of() for the devices of this machine. Call these functions after loading the plug-ins. Both
/// functions call warn_of_missing_gpus().
std::string all_devices(const PluginReport& plugins);
std::string default_devices(const PluginReport& plugins);
/// If there is no GPU, prints a line on stderr for the first broken plug-in. Only the first call can print this line.
void warn_of_broken_plugins(const PluginReport& plugins);
/// Calls warn_of_broken_plugins(). The first call also prints a line for each family with GPUs that cannot be used.
void warn_of_missing_gpus(const PluginReport& plugins);

/// The value of a family's feature with this name (functions::Feature); "" if the family has no such feature.
std::string feature_of(const BackendReg& family, std::string_view name);
/// The reason why a family has no devices or omits some devices; "" if the reason is unknown.
std::string lack_of_devices(const BackendReg& family);

/// Expands a list of devices to the devices of all processes, with names that are the same in every process. A list
/// without names of processes or hosts applies to each process. A host stands for the devices that `own_devices`
/// returns in the processes of the host. With one process, returns the list unchanged. Collective if the list names
/// hosts. Throws InvalidArgument for an unknown process or host.
///
///   2 processes: "CPU0,CPU1" -> "CPU0,CPU1,1:CPU0,1:CPU1"    "@0,@1" -> "CPU0,1:CPU0"    "CPU0,1:CPU0" -> the same
std::string of_all_processes(const std::string& list, const std::function<std::string()>& own_devices);
/// Joins the lists `own` of all processes, with names that are the same in every process. With one process, returns
/// `own`. Collective.
std::string of_every_process(const std::string& own);

/// Finds the named devices. A name such as CPU1 creates at least two CPU devices, if the machine has as many cores and
/// SHOAL_CPU_DEVICES is not set. Throws InvalidArgument for an unlisted device; the message names the listed devices.
/// With several processes, this call is collective. Devices of other processes are remote devices, and later calls
/// return the same objects.
std::vector<Device*> find_devices(const std::vector<std::string>& names);
/// Finds the named devices in this process only. Returns nullptr for a device that is not listed.
std::vector<Device*> find_known_devices(const std::vector<std::string>& names);

}  // namespace shoal::tools
