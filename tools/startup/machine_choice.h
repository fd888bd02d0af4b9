// Which machine predictions are made for: one of the catalogue or of a file (machine/catalogue.h), or this one as it
// was probed (tuning/probe/probe.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "devices/device.h"
#include "machine/machine.h"
#include "models/place/placement.h"
#include "tools/cli/flags.h"
#include "tuning/probe/probe.h"

namespace shoal::tools {

struct KnownMachine {
  std::shared_ptr<const machine::MachineModel> model;
  std::string origin;  ///< "H200x8", "machine.json", "measured 2026-11-22 07:00:00 UTC"
};

/// A question for figures of these devices, with `threads` threads each (0: their default), and of a model's types.
struct MachineQuestion {
  const models::Model& model;
  std::vector<Device*> devices;  ///< the host, too, if something stays there
  int threads = 0;
  std::string comm = {};     ///< PlacementOptions::comm
  std::string machine = {};  ///< name or file, to take instead of a probe
};

/// The machine named; where none is, what is kept of a probe, with a warning where that was disturbed. nullopt where
/// there is none. Throws what machine::find_machine throws.
std::optional<KnownMachine> find_machine(const MachineQuestion& question);
/// Of several processes: measures quickly what find_machine() would not find, so that process 0 finds it. Collective;
/// does nothing in a single process.
void measure_for_processes(const MachineQuestion& question);
/// The same; where there is none, the devices are probed quickly and the figures kept, which a line on stderr says.
/// Throws InvalidArgument with lack_of() of a machine that is named.
KnownMachine require_machine(const MachineQuestion& question);
/// probe::probe, or of several processes probe_everywhere; where a device has too little memory for it, the error
/// names the flag that leaves it out.
machine::MachineModel probe_devices(std::span<Device* const> devices, const probe::ProbeOptions& options);
/// Why a machine that was named is of no use for the question: it lacks the host that the options of the placement ask
/// for. Empty where it has all devices.
std::string lack_of(const KnownMachine& machine, const MachineQuestion& question);
/// The devices that the flags name. Those of a named machine that are not here are simulated (devices/sim), and where
/// no devices are named, all of that machine's are taken.
void take_devices_of(const std::string& machine, DeviceFlags& flags);
models::DeviceGroups find_groups_on(const std::string& machine, const DeviceFlags& flags);
/// Of a machine with GPUs these, and its CPUs are hosts; else all devices.
std::vector<const machine::DeviceModel*> devices_to_use(const machine::MachineModel& machine);
/// The named machine's first CPU that is none of the devices, for PlacementOptions::host; nullptr: it has none, or
/// there is no name.
Device* host_on(const std::string& machine, const models::DeviceGroups& groups);
/// A device that stands for the one described; what it says of itself is its identity, or its name where it has none.
Device& simulated_device(const machine::DeviceModel& described);
/// The command that makes predictions possible: "shoal probe --devices CPU0,CPU1 -t 2". `force`: or "--force ", for
/// better ones.
std::string probe_command(const MachineQuestion& question, const char* force = "");
/// Where other programs disturbed the probe of a machine, a warning that says so and names the `remedy`; once, however
/// often it is asked for.
void warn_of_disturbance(const machine::MachineModel& machine, const std::string& remedy);

}  // namespace shoal::tools
