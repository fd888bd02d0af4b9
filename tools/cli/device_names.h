// Devices by the names that users give them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"

namespace shoal::tools {

/// "CPU0, cpu1+CPU2" -> {"CPU0", "cpu1", "CPU2"}. Throws InvalidArgument for an empty name and for one that comes twice
/// in any case.
std::vector<std::string> split_device_names(std::string_view text);

/// "CPU0+CPU1,CPU2" -> {2, 1}: how many of split_device_names() are in each group; those joined by + act as one.
std::vector<int> device_group_sizes(std::string_view text);

/// "all" in any case: in place of names, what all_devices() gives.
bool names_all(std::string_view text);
/// All GPUs of those listed; where there is none, all GPUs inside of CPUs, or all CPU devices: a GPU that waits for a
/// CPU is no faster for it. "CUDA0,CUDA1".
std::string all_of(std::span<Device* const> listed);
/// All GPUs of those listed, or CPU0: the devices of a command that names none.
std::string default_of(std::span<Device* const> listed);
/// Both of the devices that there are, after plug-ins were loaded, with the warnings below.
std::string all_devices(const PluginReport& plugins);
std::string default_devices(const PluginReport& plugins);
/// Once: a line on stderr for a broken plug-in, if there is no GPU.
void warn_of_broken_plugins(const PluginReport& plugins);
/// The same, and a line for the GPUs that cannot be used.
void warn_of_missing_gpus(const PluginReport& plugins);

/// What a family says of itself by this name (functions::Feature); "" where it does not.
std::string feature_of(const BackendReg& family, std::string_view name);
/// Why a family has no devices or left some out; "" if unknown.
std::string lack_of_devices(const BackendReg& family);

/// The devices of all processes that a list stands for, by names that are the same in all of them. The list applies to
/// each process, or names ranks, or hosts, whose processes use the devices that `own_devices` returns there. With one
/// process the list stays as it is. Collective if it names hosts. Throws InvalidArgument.
///   2 processes: "CPU0,CPU1" -> "CPU0,CPU1,1:CPU0,1:CPU1"    "@0,@1" -> "CPU0,1:CPU0"    "CPU0,1:CPU0" -> the same
std::string of_all_processes(const std::string& list, const std::function<std::string()>& own_devices);
/// The list of each process, joined by names that are the same in all of them; `own` with one process. Collective.
std::string of_every_process(const std::string& own);

/// The devices named. Where SHOAL_CPU_DEVICES does not say how many CPU devices there are, naming CPU1 makes at least
/// two, as long as each has a core. Throws InvalidArgument for a device that is not listed, naming those that are. Of
/// several processes: collective; those of others are remote devices, the same whenever they are named.
std::vector<Device*> find_devices(const std::vector<std::string>& names);
/// The same with nullptr in place of a device that is not listed.
std::vector<Device*> find_known_devices(const std::vector<std::string>& names);

}  // namespace shoal::tools
