// Devices by the names that users give them.
#pragma once

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
/// All GPUs of those listed; where there is none, all of another kind that computes beside the CPU, or all CPU devices:
/// a GPU that waits for a CPU is no faster for it. "CUDA0,CUDA1". Plug-ins have been loaded before.
std::string all_devices();
/// What is used where no devices are named: all GPUs, or CPU0.
std::string default_devices();
/// The names of the listed devices of the first of these types that there are devices of; "" where there are none.
std::string names_of_first(std::span<Device* const> listed, std::span<const DeviceType> types);

/// The devices named. Where SHOAL_CPU_DEVICES does not say how many CPU devices there are, naming CPU1 makes at least
/// two, as long as each has a core. Throws InvalidArgument for a device that is not listed, naming those that are.
std::vector<Device*> find_devices(const std::vector<std::string>& names);
/// The same with nullptr in place of a device that is not listed.
std::vector<Device*> find_known_devices(const std::vector<std::string>& names);

}  // namespace shoal::tools
