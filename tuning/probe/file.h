// Stores the results of `shoal probe` in a file: a list of MachineModels, each with its program version and hardware. A
// stored model is used only by the same program version and for the same hardware: device description, place (PCI
// address or cores), threads and instructions. For several devices, the implementation of collectives (`comm`, named as
// in ProbeOptions::comm) and SHOAL_COMM_WIRE must also be the same. Otherwise the machine must be measured again.
//
//   {"version": 1, "machines": [{"program": "0.1.0", "measured": "2026-11-22 07:00:00 UTC",
//                                "places": {"CPU0": "cores 0", "CPU1": "cores 1"}, "collectives": "auto f32",
//                                "machine": {...}}]}
//
// Threads and processes may use the file at the same time. The last writer wins.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "machine/machine.h"

namespace shoal::probe {

using machine::DeviceModel;
using machine::MachineModel;

struct MeasuredMachine {
  MachineModel machine;
  std::string measured;  ///< time of the measurement: "2026-11-22 07:00:00 UTC"
};

/// Path of the file: SHOAL_MACHINE_FILE, otherwise shoal/machine.json in XDG_CACHE_HOME or ~/.cache.
std::filesystem::path machine_file();
/// The latest stored machine that contains all these devices in their current state. It may contain more devices. It
/// must have been measured with `threads` threads for each CPU device (0: the default), and it must have products of
/// all the dtypes that each device supports. For several devices of one kind, the measured sets must be sufficient to
/// estimate their collectives. nullopt if there is no such machine. An unreadable or damaged file, or a file in another
/// format, counts as empty.
std::optional<MeasuredMachine> find_measured(std::span<Device* const> devices, int threads,
                                             std::span<const DType> dtypes = {}, std::string_view comm = {});
/// Stores the machine as the latest entry and returns the time of the measurement. Throws like write_cache_file().
std::string save_machine(const MachineModel& machine, std::string_view comm = {});
/// Throws the error that save_machine() would throw. Call it before a measurement, which would otherwise be lost.
void check_machine_file();

}  // namespace shoal::probe
