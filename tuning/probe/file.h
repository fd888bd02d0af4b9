// What `shoal probe` has measured on this machine, kept in a file: a list of MachineModels, each with the version of
// the program and the hardware that it holds for. Another program version, or a device with another description,
// another place (PCI address, cores), other threads or other instructions, finds nothing and has to be measured anew;
// so do several devices with collectives by another implementation or SHOAL_COMM_WIRE. `comm`: that implementation, as
// ProbeOptions::comm names it.
//
//   {"version": 1, "machines": [{"program": "0.1.0", "measured": "2026-11-22 07:00:00 UTC",
//                                "places": {"CPU0": "cores 0", "CPU1": "cores 1"}, "collectives": "auto f32",
//                                "machine": {...}}]}
//
// Threads and processes may use the file at the same time; the last one to write wins.
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
  std::string measured;  ///< when: "2026-11-22 07:00:00 UTC"
};

/// SHOAL_MACHINE_FILE, or shoal/machine.json in XDG_CACHE_HOME, or in ~/.cache.
std::filesystem::path machine_file();
/// The latest one that was measured with all of the devices as they are now (it may have more of them), with `threads`
/// for each CPU device (0: its default) and products of all the dtypes that a device multiplies with; several devices
/// of one kind only where sets of such were measured from which theirs follows. Domains, tables and everything else are
/// as measured. nullopt when there is none; a file that cannot be read, is damaged or is not ours counts as none.
std::optional<MeasuredMachine> find_measured(std::span<Device* const> devices, int threads,
                                             std::span<const DType> dtypes = {}, std::string_view comm = {});
/// Adds it before the others, and says when it was measured. Throws as write_cache_file() does.
std::string save_machine(const MachineModel& machine, std::string_view comm = {});
/// Throws what save_machine would, before there is anything to be saved.
void check_machine_file();

}  // namespace shoal::probe
