// Stores the results of `shoal probe` in a file: a list of MachineModels, each with its program version and hardware. A
// stored model is valid only for the same program version and hardware. The hardware consists of the description, place
// (PCI address or cores), number of threads and instruction set of each device. For several devices, the implementation
// of collectives (`comm`, named as in ProbeOptions::comm) and SHOAL_COMM_WIRE must also be the same. If one of these
// values differs, a new probe is necessary.
//
//   {"version": 1, "machines": [{"program": "0.1.0", "measured": "2026-11-22 07:00:00 UTC",
//                                "places": {"CPU0": "cores 0", "CPU1": "cores 1"}, "collectives": "auto f32",
//                                "machine": {...}}]}
//
// Several threads and processes may use the file at the same time. If two programs save at the same time, the file
// lacks the machine of the program that wrote the file first.
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
  std::string measured;  ///< time of the measurement, such as "2026-11-22 07:00:00 UTC"
};

/// Path of the file: the value of SHOAL_MACHINE_FILE, or shoal/machine.json in XDG_CACHE_HOME or ~/.cache.
std::filesystem::path machine_file();
/// The latest stored machine that contains all these devices in their current state. The machine may contain more
/// devices. Returns nullopt if no stored machine meets these conditions:
///
/// - The probe used `threads` threads for each CPU device (0: the default number).
/// - Each device has product measurements for all `dtypes` that it supports.
/// - The measured sets are sufficient to estimate the collectives of several devices.
///
/// A file that is unreadable, damaged or in another format counts as empty.
std::optional<MeasuredMachine> find_measured(std::span<Device* const> devices, int threads,
                                             std::span<const DType> dtypes = {}, std::string_view comm = {});
/// Stores the machine as the latest entry. Returns the time of the measurement. Throws the exceptions of
/// write_cache_file().
std::string save_machine(const MachineModel& machine, std::string_view comm = {});
/// Throws the error that save_machine() would throw. A call before a measurement prevents the loss of the results.
void check_machine_file();

}  // namespace shoal::probe
