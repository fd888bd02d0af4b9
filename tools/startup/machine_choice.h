// Chooses the machine for predictions: a machine of the catalogue or of a file (machine/catalogue.h), or this machine
// with the results of a probe (tuning/probe/probe.h).
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
  std::string origin;  ///< name, file or time: "H200x8", "machine.json", "measured 2026-11-22 07:00:00 UTC"
};

/// A request for performance data of `devices` and of the weight types in `model`. Each CPU device has `threads`
/// threads (0: the default number of the device).
struct MachineQuery {
  const models::Model& model;
  std::vector<Device*> devices;  ///< must include the host if the host stores parts of the model
  int threads = 0;
  std::string comm = {};     ///< PlacementOptions::comm
  std::string machine = {};  ///< name or file of a machine description; "" means this machine
};

/// Returns the named machine. Without a name, returns the saved probe of this machine, or nullopt if no probe is saved.
/// Warns if other programs disturbed the probe. Throws the errors of machine::find_machine().
std::optional<KnownMachine> find_machine(const MachineQuery& question);
/// With several processes, probes the devices quickly if find_machine() returns nullopt in process 0. Process 0 saves
/// the measurements. The call is collective. Does nothing in a single process.
void measure_for_processes(const MachineQuery& question);
/// Like find_machine(), but probes the devices quickly if no measurements are saved. Saves these measurements and
/// prints one line on stderr. If a named machine lacks a device, throws InvalidArgument with the text of lack_of().
KnownMachine require_machine(const MachineQuery& question);
/// Calls probe::probe(), or probe_everywhere() with several processes. If a device has too little memory for the probe,
/// the error names the flag that excludes the device.
machine::MachineModel probe_devices(std::span<Device* const> devices, const probe::ProbeOptions& options);
/// Returns an error text if the machine has no host although the placement flags need the host. Otherwise returns "".
std::string lack_of(const KnownMachine& machine, const MachineQuery& question);
/// If --devices is missing or "all", take_devices_of() selects devices_to_use() of the named machine. find_groups_on()
/// finds the selected devices. If this machine lacks a device of the named machine, the device is simulated
/// (tuning/sim_device.h).
void take_devices_of(const std::string& machine, DeviceFlags& flags);
models::DeviceGroups find_groups_on(const std::string& machine, const DeviceFlags& flags);
/// If the machine has GPUs, returns the GPUs, because the CPUs are then hosts. Otherwise returns all devices of the
/// machine.
std::vector<const machine::DeviceModel*> devices_to_use(const machine::MachineModel& machine);
/// Returns the first CPU of the named machine that is not in `groups`, for PlacementOptions::host. Returns nullptr if
/// the machine has no such CPU or the name is empty.
Device* host_on(const std::string& machine, const models::DeviceGroups& groups);
/// Returns a simulated device that represents the described device. The description of the simulated device contains
/// the identity of the described device (DeviceModel::identity: hardware, threads and options). If the identity is
/// empty, the description contains the name of the described device.
Device& simulated_device(const machine::DeviceModel& described);
/// The command that measures these devices: "shoal probe --devices CPU0,CPU1 -t 2". `force` is "--force " if the
/// command must repeat a saved measurement, and "" otherwise.
std::string probe_command(const MachineQuery& question, const char* force = "");
/// Warns that other programs disturbed the probe of a machine, and names the command `remedy`. Prints the same warning
/// only once.
void warn_of_disturbance(const machine::MachineModel& machine, const std::string& remedy);

}  // namespace shoal::tools
